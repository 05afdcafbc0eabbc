"""Rows that are added several at a time."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import ring as ring_
from jaxreplay._internal import packing
from jaxreplay.fields import Row
from jaxreplay.ring import Ring


def checked(ring: Ring, rollout: Row, feedback: Mapping[str, Any]) -> Row:
    """Return steps `[T, E, ...]` in the dtypes of a ring.

    Raises:
      ValueError: one line: fields differ in T, a row does not fit, or the caller keeps rows.
    """
    if ring.split is not None:
        raise ValueError("on_host: the caller takes every row after its own add: add them so")
    leaves = jax.tree.leaves_with_path((rollout, dict(feedback)))
    lengths = {packing.name_of(path[1:]): jnp.shape(leaf)[:1] for path, leaf in leaves}
    (first, steps), *others = lengths.items() or [("the rollout", ())]
    for name, other in others:
        if other != steps:
            raise ValueError(
                f"a rollout has {first} of {list(steps)} steps and {name} of {list(other)}: give "
                "all of its fields the same number"
            )
    if not steps:
        raise ValueError(f"{first} of a rollout has shape []: give it the axes [T, E]")
    if not steps[0]:
        raise ValueError("a rollout has no steps: give one at least")
    # All steps are of one kind and differ in their numbers alone.
    for extreme in (np.min, np.max):
        ring_.check_fits(ring, jax.tree.map(functools.partial(_one_for_all, extreme), rollout))
    return ring_.as_stored(ring, jax.tree.map(jnp.asarray, rollout))


def _one_for_all(extreme: Callable[..., Any], leaf: Any) -> Any:
    """Return one row of a leaf `[T, E, ...]`: where numbers are at hand, by their extremes."""
    known = isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.integer)
    return extreme(leaf, axis=0) if known else leaf[0]
