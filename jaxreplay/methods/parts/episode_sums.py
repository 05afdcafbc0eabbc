"""Sums of values over the steps of an episode, with updates and reads in logarithmic time.

The leaves of a tree are the values of steps, grouped by environment. A node is the sum of the
leaves below it, counted from the last start of an episode. A sum up to a step therefore adds one
number per level. No differences are taken, so values of other episodes cause no rounding error.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import buffer
from jaxreplay.buffer import Buffer
from jaxreplay.types import Array

_CHILDREN = 8  # children per node
_SMALL = 512  # levels with at most this many nodes are recomputed completely


class EpisodeSums(NamedTuple):
    """Sums of the nodes of a tree; the sign bit is set if an episode starts below the node.

    All arrays contain the levels of the tree, leaves first, padded to whole families of siblings.
    """

    values: Buffer  # [V] float32, large levels and the level above them: sums of a node from the
    # last start of an episode below it
    prefixes: Buffer  # [F, 8] float32, all levels: sums of a node and its earlier siblings


def init(capacity: int) -> EpisodeSums:
    """Return sums for `capacity` values, all 0."""
    large, small = _levels(capacity)
    families = sum(large + small) // _CHILDREN
    values = jnp.zeros(sum(large + small[:1]), jnp.float32)
    return EpisodeSums(values, jnp.zeros((families, _CHILDREN), jnp.float32))


def get(sums: EpisodeSums, places: Array) -> tuple[Array, Array]:
    """Return the values `[B]` float32 at `places` `[B]`, and whether an episode starts there."""
    signed = buffer.read(sums.values, places)
    return jnp.abs(signed), jnp.signbit(signed)


def write(
    sums: EpisodeSums, capacity: int, places: Array, values: Array, starts: Array
) -> EpisodeSums:
    """Return the sums with new values and episode starts at `places`.

    Args:
      sums: the sums.
      capacity: number of values C.
      places: `[B]` int32; places outside of `[0, capacity)` are skipped.
      values: `[B]` float32, non-negative.
      starts: `[B]` bool, whether an episode starts at the place.
    """
    large, small = _levels(capacity)
    valid = (places >= 0) & (places < capacity)
    size = sums.values.size
    nodes = buffer.write(sums.values, jnp.where(valid, places, size), _signed(values, starts))
    start, node, families, prefixes = 0, jnp.where(valid, places, 0), [], []
    for count in large:
        family = start // _CHILDREN + node // _CHILDREN
        families.append(family)
        # Without `settle`, XLA on GPU reads nodes again after later writes, and copies them for it.
        siblings = buffer.settle(buffer.read(nodes.reshape(-1, _CHILDREN), family))
        prefixes.append(_scan(siblings))
        node, start = node // _CHILDREN, start + count
        if start < size:
            nodes = buffer.write(nodes, start + node, prefixes[-1][:, -1])
    rows, sums_above = jnp.concatenate(families), buffer.settle(nodes[start:])
    for count in small:
        above = _scan(jnp.pad(sums_above, (0, count - sums_above.size)).reshape(-1, _CHILDREN))
        prefixes.append(above)
        sums_above = above[:, -1]
    tops = jnp.arange(start // _CHILDREN, len(sums.prefixes), dtype=rows.dtype)
    rows = jnp.concatenate([rows, tops])
    prefixes = buffer.write(sums.prefixes, rows, jnp.concatenate(prefixes))
    return EpisodeSums(nodes, prefixes)


def upto(sums: EpisodeSums, capacity: int, places: Array) -> Array:
    """Return the sums `[B]` from the last start of an episode up to `places` `[B]` int32."""
    large, small = _levels(capacity)
    start, node, reads, follows = large[0], places // _CHILDREN, [places], []
    for count in (*large[1:], *small):
        reads.append(start + jnp.maximum(node - 1, 0))
        follows.append(node % _CHILDREN > 0)
        node, start = node // _CHILDREN, start + count
    total, *siblings = buffer.read(sums.prefixes.reshape(-1), jnp.stack(reads).ravel()).reshape(
        len(reads), -1
    )
    for earlier, exists in zip(siblings, follows, strict=True):
        total = _join(jnp.where(exists, earlier, 0.0), total)
    return buffer.once(jnp.abs(total))


def _signed(sums: Array, starts: Array) -> Array:
    return jnp.where(starts, -sums, sums)


def _join(earlier: Array, later: Array) -> Array:
    """Add two adjacent sums, unless an episode starts in the later one."""
    return jnp.where(jnp.signbit(later), later, earlier + jnp.copysign(later, earlier))


def _scan(rows: Array) -> Array:
    columns = [rows[:, 0]]
    for child in range(1, _CHILDREN):
        columns.append(_join(columns[-1], rows[:, child]))
    return jnp.stack(buffer.once(columns), axis=1)


def _levels(capacity: int) -> tuple[list[int], list[int]]:
    """Return the padded sizes of the large and the small levels."""
    large, small, size = [], [], capacity
    while size > 1 or not large:
        padded = -(-size // _CHILDREN) * _CHILDREN
        (large if padded > _SMALL or not large else small).append(padded)
        size = padded // _CHILDREN
    return large, small
