"""Rows of which the device keeps a part, and the host the rest."""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay._internal import packing
from jaxreplay._internal.packing import Layout
from jaxreplay.types import Array, Tree


class HostSplit(NamedTuple):
    """Which leaves of a row are kept where; both parts are rows of its type, None in the gaps."""

    whole: Layout
    here: Layout  # on the device
    there: Layout  # on the host
    goes: tuple[bool, ...]  # of every leaf, whether it is kept on the host


class Leaving(NamedTuple):
    """What of the newest row goes to the host, and where."""

    words: Array  # [E, V] uint32, the bits of its fields
    slots: Array  # [E] int32


def plan(example: Tree, kept: Collection[str]) -> HostSplit:
    """Part rows: single numbers, and the fields named, stay on the device.

    Args:
      example: one row.
      kept: fields, by the first parts of their names.

    Raises:
      ValueError: either part would be empty.
    """
    whole = packing.plan(example)
    goes = tuple(math.prod(x.shape) > 1 and x.top not in kept for x in whole.fields)
    if not any(goes):
        raise ValueError(
            "on_host: the example holds nothing but single numbers and what the sampler looks "
            "at, which stay on the device: leave it out"
        )
    if all(goes):
        raise ValueError(
            "on_host: the example holds no single number to keep on the device: add a field, "
            "such as first (where episodes begin)"
        )
    leaves = jax.tree.leaves(example)
    stays = tuple(not x for x in goes)
    here, there = (packing.plan(_only(whole, leaves, which)) for which in (stays, goes))
    return HostSplit(whole, here, there, goes)


def divide(split: HostSplit, row: Tree) -> tuple[Tree, Tree]:
    """Return what of rows `[E, ...]` stays on the device, and what goes to the host."""
    leaves = split.whole.treedef.flatten_up_to(row)
    stays = tuple(not x for x in split.goes)
    return _only(split.whole, leaves, stays), _only(split.whole, leaves, split.goes)


def join(split: HostSplit, here: Tree, there: Tree) -> Tree:
    """Return rows `[B, ...]` of both parts."""
    both = (split.whole.treedef.flatten_up_to(part) for part in (here, there))
    leaves = [away if goes else own for own, away, goes in zip(*both, split.goes, strict=True)]
    return jax.tree.unflatten(split.whole.treedef, leaves)


def nothing(split: HostSplit, num_envs: int) -> Leaving:
    """Return what leaves before there is anything: zeros, for slots that are empty as well."""
    words = jnp.zeros((num_envs, split.there.words), jnp.uint32)
    return Leaving(words, jnp.arange(num_envs, dtype=jnp.int32))


def _only(whole: Layout, leaves: list[Any], which: tuple[bool, ...]) -> Tree:
    chosen = [leaf if wanted else None for leaf, wanted in zip(leaves, which, strict=True)]
    return jax.tree.unflatten(whole.treedef, chosen)
