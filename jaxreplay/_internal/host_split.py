"""Divisions of a transition's fields into a part on the device and a part on the host."""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay._internal import packing
from jaxreplay._internal.packing import Layout
from jaxreplay.types import Array, Tree


class HostSplit(NamedTuple):
    """The division of a transition's leaves into a device part and a host part.

    Each part has the transition's type, with None for the leaves of the other part.
    """

    whole: Layout  # layout of the whole transition
    here: Layout  # layout of the device part
    there: Layout  # layout of the host part
    goes: tuple[bool, ...]  # [leaves], whether a leaf is stored on the host


class Leaving(NamedTuple):
    """The host-stored fields of the newest transitions."""

    words: Array  # [E, V] uint32, the bits of the host part in V words
    slots: Array  # [E] int32, the slots of these transitions


def plan(example: Tree, kept: Collection[str]) -> HostSplit:
    """Return the split that stores scalar fields and the fields in `kept` on the device.

    Args:
      example: one transition without a batch axis.
      kept: top-level fields to store on the device.

    Raises:
      ValueError: If the device part or the host part would be empty.
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
    """Split transitions `[E, ...]` into a device part and a host part."""
    leaves = split.whole.treedef.flatten_up_to(transition)
    stays = tuple(not x for x in split.goes)
    return _only(split.whole, leaves, stays), _only(split.whole, leaves, split.goes)


def join(split: HostSplit, here: Tree, there: Tree) -> Tree:
    """Join the device part and the host part into transitions `[B, ...]`."""
    both = (split.whole.treedef.flatten_up_to(part) for part in (here, there))
    leaves = [y if goes else x for x, y, goes in zip(*both, split.goes, strict=True)]
    return jax.tree.unflatten(split.whole.treedef, leaves)


def empty_leaving(split: HostSplit, num_envs: int) -> Leaving:
    """Return the `Leaving` of an empty ring buffer: zeros for one slot of every environment."""
    words = jnp.zeros((num_envs, split.there.words), jnp.uint32)
    return Leaving(words, jnp.arange(num_envs, dtype=jnp.int32))


def _only(whole: Layout, leaves: list[Any], which: tuple[bool, ...]) -> Tree:
    chosen = [leaf if selected else None for leaf, selected in zip(leaves, which, strict=True)]
    return jax.tree.unflatten(whole.treedef, chosen)
