"""Where priorities live: a tree of sums that repairs itself.

Every node is recomputed from its children when one of them changes; differences are never added,
so nothing drifts and a tree after any history equals, bit for bit, one built afresh from its
leaves. The same structure with `reduce="min"` keeps a minimum.

Levels lie one after the other, the leaves first and the root last, each padded to a multiple of the
branching factor with the neutral element (0 for sums, infinity for minima). The leaves and the
large levels share one array, which is scattered into in place; the small upper levels share
another, which is computed anew at every write. Few arrays keep the state cheap to dispatch, and let
the walk from root to leaf be a loop.
"""

import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxreplay.types import Array

# Up to this many nodes a level is computed whole: cheaper than a scatter of a batch's parents.
_SMALL = 512
# By backend: CPUs like few operations on short rows, accelerators few dependent launches.
_BRANCHING = {"cpu": 8, "gpu": 32, "tpu": 128}


class _Levels(NamedTuple):
    """Padded sizes of the levels, from the leaves up."""

    large: tuple[int, ...]  # in `SumTree.nodes`: the leaves, and levels of more than _SMALL
    small: tuple[int, ...]  # in `SumTree.top`, down to the root's


@struct.dataclass
class SumTree:
    """A complete tree over `capacity` leaves."""

    nodes: Array  # [T] float32, the large levels from the leaves up
    top: Array  # [U] float32, the small levels up to the root
    capacity: int = struct.field(pytree_node=False)
    branching: int = struct.field(pytree_node=False)
    reduce: Literal["sum", "min"] = struct.field(pytree_node=False)


def init(
    capacity: int, branching: int | None = None, reduce: Literal["sum", "min"] = "sum"
) -> SumTree:
    """Make a tree of `capacity` empty leaves (0 for sums, infinity for minima).

    Args:
      capacity: number of leaves.
      branching: children per node; None takes the default of the backend in use.
      reduce: "sum", or "min" for a tree of minima.

    Raises:
      ValueError: `capacity` is below 1 or `branching` below 2.
    """
    branching = branching or _BRANCHING.get(jax.default_backend(), 8)
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}: a tree needs at least 1 leaf")
    if branching < 2:
        raise ValueError(f"branching is {branching}: a node needs at least 2 children")
    levels = _levels(capacity, branching)
    nodes, top = (jnp.full(sum(part), _neutral(reduce), jnp.float32) for part in levels)
    return SumTree(nodes, top, capacity, branching, reduce)


def set(tree: SumTree, indices: Array, values: Array) -> SumTree:
    """Write leaves and repair every node above them.

    A row is skipped, keeping the old leaf, if its index is outside `[0, capacity)` or its value is
    NaN, infinite or negative. Where an index occurs twice, one of its values is kept. Values are
    capped at the largest float32 divided by the capacity, so that no sum overflows.

    Args:
      tree: the tree.
      indices: `[B]` int32.
      values: `[B]` float32, not negative.
    """
    return repair(put(tree, indices, values), indices)


def put(tree: SumTree, indices: Array, values: Array, *, raise_only: bool = False) -> SumTree:
    """Write leaves as `set` does, but leave the nodes above stale until `repair`.

    With `raise_only` a leaf keeps its value if that is larger; where an index occurs twice, the
    largest counts.
    """
    if indices.size == 1:
        # XLA makes a scatter of one row an update-slice, fuses it with the reads that follow, and
        # then copies the whole array to keep the old one for them. Two rows stay a scatter.
        indices, values = jnp.tile(indices, 2), jnp.tile(values, 2)
    valid = (indices >= 0) & (indices < tree.capacity) & jnp.isfinite(values) & (values >= 0)
    values = jnp.minimum(values, jnp.finfo(jnp.float32).max / tree.capacity)
    at = tree.nodes.at[jnp.where(valid, indices, tree.nodes.size)]
    return tree.replace(nodes=(at.max if raise_only else at.set)(values, mode="drop"))


def repair(tree: SumTree, indices: Array) -> SumTree:
    """Recompute every node above the leaves `indices` (`[B]` int32; out of range is ignored)."""
    if indices.size == 1:
        indices = jnp.tile(indices, 2)  # as in `put`
    levels = _levels(tree.capacity, tree.branching)
    nodes = tree.nodes
    # Repairing a parent that did not change is harmless.
    parents = jnp.where((indices >= 0) & (indices < tree.capacity), indices, 0)
    start = 0
    for below in levels.large[:-1]:
        parents = parents // tree.branching
        children = _rows(nodes, tree)[start // tree.branching + parents]  # [B, b]
        start += below
        nodes = nodes.at[start + parents].set(_combine(children, tree.reduce))
    return tree.replace(nodes=nodes, top=_top(nodes[start:], tree))


def rebuild(tree: SumTree, leaves: Array) -> SumTree:
    """Replace all leaves (`[C]` float32, not checked) and recompute every node."""
    first, *large = _levels(tree.capacity, tree.branching).large
    parts = [_pad(leaves.astype(jnp.float32), first, tree.reduce)]
    for size in large:
        parents = _combine(parts[-1].reshape(-1, tree.branching), tree.reduce)
        parts.append(_pad(parents, size, tree.reduce))
    return tree.replace(nodes=jnp.concatenate(parts), top=_top(parts[-1], tree))


def get(tree: SumTree, indices: Array) -> Array:
    """Read leaves: `[B]` int32 within the capacity -> `[B]` float32."""
    return tree.nodes[indices]


def leaves(tree: SumTree) -> Array:
    """Return all leaves, `[C]` float32."""
    return tree.nodes[: tree.capacity]


def total(tree: SumTree) -> Array:
    """Return the sum (or minimum) of all leaves, `[]` float32."""
    return tree.top[-tree.branching]  # the root's level holds one node and padding


def sample(tree: SumTree, key: Array, batch_size: int, stratified: bool = True) -> Array:
    """Draw leaves in proportion to their values: `[batch_size]` int32.

    A leaf of value 0 is never drawn while any leaf is positive. If all are 0 the result is
    meaningless (the caller looks at `total`).

    Args:
      tree: a tree of sums.
      key: PRNG key.
      batch_size: number of draws B.
      stratified: cut the total into B equal ranges and draw once in each (Schaul et al. 2016,
        App. B.2.1); otherwise the draws are independent.
    """
    bits = jax.random.bits(key, (batch_size,), jnp.uint32)
    if stratified:
        edges = np.array([(i << 32) // batch_size for i in range(batch_size + 1)])
        bits = edges[:-1].astype(np.uint32) + bits % np.diff(edges).astype(np.uint32)
    return find(tree, *_fraction(bits, total(tree)))


def _fraction(bits: Array, whole: Array) -> tuple[Array, Array]:
    """Return `bits / 2^32 * whole` as a float32 and what of it float32 rounds away.

    float32 alone resolves 2^-24 of the whole: with priorities many orders of magnitude apart, some
    of the small leaves would never be drawn. Factors of 12 bits make every product here exact.
    """
    first = (bits >> 20).astype(jnp.float32) * 2.0**-12
    second = ((bits >> 8) & 0xFFF).astype(jnp.float32) * 2.0**-24
    third = (bits & 0xFF).astype(jnp.float32) * 2.0**-32
    mask = jnp.uint32(0xFFFFF000)
    head = jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(whole, jnp.uint32) & mask, jnp.float32
    )
    tail = whole - head
    target = (first + second) * whole
    rounded = ((first * head - target) + first * tail + second * head) + second * tail
    return _floor(target, rounded + third * whole)


def _floor(value: Array, rest: Array) -> tuple[Array, Array]:
    """Return the largest float32 up to `value + rest`, and what is left, which is not negative.

    `rest` is small beside `value`. Rounding down matters: a target rounded up to where a child's
    range starts would fall to that child and not to the one before.
    """
    near = value + rest
    left = rest - (near - value)
    above = (left < 0) & (near > 0)
    bits = jax.lax.bitcast_convert_type(near, jnp.int32) - above.astype(jnp.int32)
    floor = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return floor, left + (near - floor)


def find(tree: SumTree, target: Array, rest: Array | float = 0.0) -> Array:
    """Find the leaf at which the running sum of the leaves passes `target + rest`.

    At each node the walk takes the last positive child whose range starts at or before the
    target, so a target at or beyond the total (rounding) ends on the last positive leaf.

    Args:
      tree: a tree of sums.
      target: `[B]` float32 in [0, total).
      rest: `[B]` float32, what of the target is too small for float32 beside it.

    Returns:
      `[B]` int32 leaf indices.
    """
    levels = _levels(tree.capacity, tree.branching)
    rest = jnp.broadcast_to(jnp.asarray(rest, jnp.float32), target.shape)
    walk = (jnp.zeros(target.shape, jnp.int32), target, rest)
    walk = _descend(_rows(tree.top, tree), levels.small[:-1], walk)
    return _descend(_rows(tree.nodes, tree), levels.large, walk)[0]


_Walk = tuple[Array, Array, Array]  # node [B] in its level, target [B] within it, rest [B]


def _descend(rows: Array, sizes: tuple[int, ...], walk: _Walk) -> _Walk:
    """Choose a child at each level of `sizes` (from the leaves up; walked from the end).

    `rows` are the levels' nodes `[n, b]`, one row for the children of one parent.
    """
    branching = rows.shape[1]
    starts = jnp.asarray([sum(sizes[:level]) // branching for level in range(len(sizes))])

    def step(done: Array, walk: _Walk) -> _Walk:
        node, target, rest = walk
        children = rows[starts[len(sizes) - 1 - done] + node]  # [B, b]
        start = jnp.zeros_like(target)
        chosen, chosen_start = jnp.zeros_like(node), jnp.zeros_like(target)
        for child in range(branching):
            value = children[:, child]
            here = (value > 0) & (start <= target)
            chosen = jnp.where(here, child, chosen)
            chosen_start = jnp.where(here, start, chosen_start)
            start = start + value
        return node * branching + chosen, *_floor(target - chosen_start, rest)

    # A loop, not unrolled: XLA would fuse the levels and compute each one's ancestors again.
    return jax.lax.fori_loop(0, len(sizes), step, walk) if sizes else walk


def check_valid(tree: SumTree) -> None:
    """Check a concrete tree's invariants.

    Raises:
      ValueError: a leaf is NaN, infinite or negative, padding is not neutral, or a node differs
        from what its children give.
    """
    live = leaves(tree)
    bad = ~jnp.isfinite(live) | (live < 0)
    if tree.reduce == "min":
        bad = jnp.isnan(live) | (live < 0)
    if bad.any():
        raise ValueError(f"leaf {int(bad.argmax())} is {live[bad.argmax()]}")
    fresh = rebuild(tree, live)
    for name, have, want in (("node", tree.nodes, fresh.nodes), ("top", tree.top, fresh.top)):
        if not (have == want).all():
            at = int((have != want).argmax())
            raise ValueError(f"{name} {at} is {have[at]}, its children give {want[at]}")


@functools.cache
def _levels(capacity: int, branching: int) -> _Levels:
    """Lay out the levels: the root is a level of one node, padded like the others."""
    sizes, size = [], capacity
    while size > 1 or len(sizes) < 2:
        sizes.append(size)
        size = math.ceil(size / branching)
    sizes.append(size)
    padded = [math.ceil(size / branching) * branching for size in sizes]
    large = 1 + sum(size > _SMALL for size in padded[1:-1])
    return _Levels(tuple(padded[:large]), tuple(padded[large:]))


def _rows(nodes: Array, tree: SumTree) -> Array:
    return nodes.reshape(-1, tree.branching)


def _top(below: Array, tree: SumTree) -> Array:
    """Compute the small levels from the level below them."""
    parts = []
    for size in _levels(tree.capacity, tree.branching).small:
        below = _pad(_combine(below.reshape(-1, tree.branching), tree.reduce), size, tree.reduce)
        parts.append(below)
    return jnp.concatenate(parts)


def _neutral(reduce: str) -> float:
    return 0.0 if reduce == "sum" else math.inf


def _combine(children: Array, reduce: str) -> Array:
    """Reduce `[n, b]` to `[n]`, in a fixed order so that every path gives the same bits."""
    columns = [children[:, child] for child in range(children.shape[1])]
    join = jnp.add if reduce == "sum" else jnp.minimum
    while len(columns) > 1:
        pairs = [functools.reduce(join, columns[i : i + 2]) for i in range(0, len(columns), 2)]
        columns = pairs
    return columns[0]


def _pad(values: Array, size: int, reduce: str) -> Array:
    return jnp.pad(values, (0, size - values.size), constant_values=_neutral(reduce))
