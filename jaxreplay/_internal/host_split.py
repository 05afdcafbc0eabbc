"""Splits of a transition's fields between the device and the host."""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay._internal import packing
from jaxreplay._internal.packing import Layout
from jaxreplay.types import Array, Tree


class HostSplit(NamedTuple):
    """The split of the leaves; each part has the transition's type, with None for other leaves."""

    whole: Layout
    here: Layout  # on the device
    there: Layout  # on the host
    goes: tuple[bool, ...]  # [leaves], whether a leaf is stored on the host


class Leaving(NamedTuple):
    """The host-stored fields of the newest transitions."""

    words: Array  # [E, V] uint32, the bits of the fields
    slots: Array  # [E] int32, the slots of these transitions


def plan(example: Tree, kept: Collection[str]) -> HostSplit:
    """Return a split that stores scalar fields and the fields in `kept` on the device.

    Args:
      example: one transition without a batch axis.
      kept: top-level fields to store on the device.

    Raises:
      ValueError: If either part is empty.
    """
    whole = packing.plan(example)
    goes = tuple(math.prod(x.shape) > 1 and x.top not in kept for x in whole.fields)
    if not any(goes):
        raise ValueError(
            "on_host=True requires a non-scalar field that the sampler does not read: use "
            "Transitions()"
        )
    if all(goes):
        raise ValueError("on_host=True requires a scalar field: add one, such as first")
    leaves = jax.tree.leaves(example)
    stays = tuple(not x for x in goes)
    here, there = (packing.plan(_only(whole, leaves, which)) for which in (stays, goes))
    return HostSplit(whole, here, there, goes)


def divide(split: HostSplit, transition: Tree) -> tuple[Tree, Tree]:
    """Split transitions `[E, ...]` into the parts for the device and the host."""
    leaves = split.whole.treedef.flatten_up_to(transition)
    stays = tuple(not x for x in split.goes)
    return _only(split.whole, leaves, stays), _only(split.whole, leaves, split.goes)


def join(split: HostSplit, here: Tree, there: Tree) -> Tree:
    """Join both parts into transitions `[B, ...]`."""
    both = (split.whole.treedef.flatten_up_to(part) for part in (here, there))
    leaves = [y if goes else x for x, y, goes in zip(*both, split.goes, strict=True)]
    return jax.tree.unflatten(split.whole.treedef, leaves)


def empty_leaving(split: HostSplit, num_envs: int) -> Leaving:
    """Return the value of `leaving` before the first add: zeros for empty slots."""
    words = jnp.zeros((num_envs, split.there.words), jnp.uint32)
    return Leaving(words, jnp.arange(num_envs, dtype=jnp.int32))


def _only(whole: Layout, leaves: list[Any], which: tuple[bool, ...]) -> Tree:
    chosen = [leaf if selected else None for leaf, selected in zip(leaves, which, strict=True)]
    return jax.tree.unflatten(whole.treedef, chosen)
