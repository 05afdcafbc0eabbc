"""Sums of values over the steps of an episode, with updates and reads in logarithmic time.

The leaves of a tree are the values of one environment's steps after the other's. A node is the sum
of the leaves below it, counted from the last start of an episode. A sum up to a step then adds one
number per level, and as no differences are taken, values of other episodes cause no rounding error.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay._internal import buffer
from jaxreplay._internal.buffer import Buffer
from jaxreplay.types import Array

_CHILDREN = 8  # children per node
_SMALL = 512  # levels with at most this many nodes are recomputed completely


class EpisodeSums(NamedTuple):
    """Sums of the nodes of a tree; the sign bit is set if an episode starts below the node.

    All arrays contain the levels of the tree, leaves first, padded to whole families of siblings.
    """

    values: Buffer  # [V] float32, large levels: sums since the last start below a node
    prefixes: Buffer  # [T] float32, all levels: sums of a node and its earlier siblings


def init(capacity: int) -> EpisodeSums:
    """Return sums for `capacity` values, all 0."""
    large, small = _levels(capacity)
    return EpisodeSums(*(jnp.zeros(sum(x), jnp.float32) for x in (large, large + small)))


def get(sums: EpisodeSums, places: Array) -> tuple[Array, Array]:
    """Return the values `[B]` float32 at `places` `[B]`, and whether an episode starts there."""
    signed = buffer.read_few(sums.values, places)
    return jnp.abs(signed), jnp.signbit(signed)


def write(
    sums: EpisodeSums, capacity: int, places: Array, values: Array, starts: Array
) -> EpisodeSums:
    """Set values, and whether an episode starts at them.

    Args:
      sums: the sums.
      capacity: number of values C.
      places: `[B]` int32; places outside of `[0, capacity)` are skipped.
      values: `[B]` float32, non-negative.
      starts: `[B]` bool.
    """
    large, small = _levels(capacity)
    valid = (places >= 0) & (places < capacity)
    size = sums.values.size
    leaves = buffer.write(sums.values, jnp.where(valid, places, size), _signed(values, starts))
    prefixes, start, node = sums.prefixes, 0, jnp.where(valid, places, 0)
    for level, count in enumerate(large):
        family = start // _CHILDREN + node // _CHILDREN
        rows = buffer.read_few(leaves.reshape(-1, _CHILDREN), family)
        rows = _scan(rows)
        prefixes = buffer.write(prefixes.reshape(-1, _CHILDREN), family, rows).reshape(-1)
        node, start = node // _CHILDREN, start + count
        if level + 1 < len(large):
            leaves = buffer.write(leaves, start + node, rows[:, -1])
    ends = prefixes[start - large[-1] : start].reshape(-1, _CHILDREN)[:, -1]
    top = []
    for count in small:
        rows = _scan(jnp.pad(ends, (0, count - ends.size)).reshape(-1, _CHILDREN))
        top.append(rows.reshape(-1))
        ends = rows[:, -1]
    if top:  # writes to the array that was read keep the next writes in place
        prefixes = buffer.write(prefixes, jnp.arange(start, prefixes.size), jnp.concatenate(top))
    return EpisodeSums(leaves, prefixes)


def upto(sums: EpisodeSums, capacity: int, places: Array) -> Array:
    """Return the sums `[B]` from the last start of an episode up to `places` `[B]` int32."""
    large, small = _levels(capacity)
    start, node, reads, follows = large[0], places // _CHILDREN, [places], []
    for count in (*large[1:], *small):
        reads.append(start + jnp.maximum(node - 1, 0))
        follows.append(node % _CHILDREN > 0)
        node, start = node // _CHILDREN, start + count
    total, *siblings = buffer.read_few(sums.prefixes, jnp.stack(reads).ravel()).reshape(
        len(reads), -1
    )
    for earlier, exists in zip(siblings, follows, strict=True):
        total = _join(jnp.where(exists, earlier, 0.0), total)
    return jnp.abs(total)


def _signed(sums: Array, starts: Array) -> Array:
    return jnp.where(starts, -sums, sums)


def _join(earlier: Array, later: Array) -> Array:
    """Add two adjacent sums, unless an episode starts in the later one."""
    return jnp.where(jnp.signbit(later), later, earlier + jnp.copysign(later, earlier))


def _scan(rows: Array) -> Array:
    columns = [rows[:, 0]]
    for child in range(1, _CHILDREN):
        columns.append(_join(columns[-1], rows[:, child]))
    return buffer.once(jnp.stack(columns, axis=1))


def _levels(capacity: int) -> tuple[list[int], list[int]]:
    """Return the padded sizes of the large and the small levels."""
    large, small, size = [], [], capacity
    while size > 1 or not large:
        padded = -(-size // _CHILDREN) * _CHILDREN
        (large if padded > _SMALL or not large else small).append(padded)
        size = padded // _CHILDREN
    return large, small
