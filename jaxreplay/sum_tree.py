"""Where priorities live: a tree of sums that repairs itself.

Every node is recomputed from its children when one of them changes; differences are never added,
so nothing drifts and a tree after any history equals, bit for bit, one built afresh from its
leaves. The same structure with `reduce="min"` keeps a minimum.

Levels lie one after the other in one array, the leaves first, each padded to a multiple of the
branching factor with the neutral element (0 for sums, infinity for minima): one array is cheap to
dispatch. The root is a scalar beside it, so that the total can be read at any time without a read
of the array that the next write must wait for.

To differentiation a tree is a constant: what is written carries no tangents.

A batch of leaves is written by scattering into the large levels and computing the small ones whole;
a single leaf, by reading all of its ancestors' children in one gather and writing them in one
scatter.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxreplay._internal import buffer, numerics
from jaxreplay._internal.arguments import as_int32, check_choice, slots_within
from jaxreplay._internal.buffer import Buffer
from jaxreplay.types import Array

Sampling = Literal["stratified", "systematic", "iid"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)

# Up to this many nodes a level is computed whole: cheaper than a scatter of a batch's parents.
_SMALL = 512
# By backend: CPUs like few operations on short rows, accelerators few dependent launches.
_BRANCHING = {"cpu": 8, "gpu": 32, "tpu": 128}
# XLA divides many numbers by one as it multiplies them by its reciprocal, which is denormal for
# totals above 2^126, and taken as 0: all probabilities would be. Sums are rounded, hence the half.
_LARGEST_TOTAL = 2.0**125


class _Levels(NamedTuple):
    """How the levels lie in `SumTree.nodes`, from the leaves up."""

    sizes: tuple[int, ...]  # padded, without the root
    starts: tuple[int, ...]  # where each begins
    large: int  # so many of them are scattered into: the leaves, and levels of more than _SMALL


class SumTree(struct.PyTreeNode):
    """A complete tree over `capacity` leaves."""

    nodes: Buffer  # [T] float32, all levels from the leaves up, without the root
    root: Array  # [] float32
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
      ValueError: `capacity` is below 1 or `branching` below 2, or `reduce` is neither.
    """
    check_choice("reduce", reduce, ("sum", "min"))
    if branching is None:
        branching = _BRANCHING.get(jax.default_backend(), 8)
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}: a tree needs at least 1 leaf")
    if branching < 2:
        raise ValueError(f"branching is {branching}: a node needs at least 2 children")
    size = sum(_levels(capacity, branching).sizes)
    nodes, root = (jnp.full(shape, _neutral(reduce), jnp.float32) for shape in (size, ()))
    return SumTree(nodes, root, capacity, branching, reduce)


def set(tree: SumTree, indices: Array, values: Array) -> SumTree:
    """Write leaves and repair every node above them.

    A row is skipped, keeping the old leaf, if its index is outside `[0, capacity)` or its value is
    NaN, infinite or negative. Where an index occurs twice, one of its values is kept. Values are
    capped at 2^125 divided by the capacity, so that no sum overflows and 1 / total is a normal
    float32.

    Args:
      tree: the tree.
      indices: `[B]` int32.
      values: `[B]` float32, not negative.
    """
    indices, values = as_int32("indices", indices, tree.capacity), jnp.asarray(values)
    if indices.size == 1:
        return _set_one(tree, indices.reshape(()), values.reshape(()))
    return repair(put(tree, indices, values), indices)


def put(tree: SumTree, indices: Array, values: Array, *, raise_only: bool = False) -> SumTree:
    """Write leaves as `set` does, but leave the nodes above stale until `repair`.

    With `raise_only` a leaf keeps its value if that is larger; where an index occurs twice, the
    largest counts.
    """
    indices = as_int32("indices", indices, tree.capacity)
    valid, values = _checked(tree, indices, values)
    slots = jnp.where(valid, indices, tree.nodes.size)
    nodes = buffer.write(tree.nodes, slots, values, "max" if raise_only else "set")
    return tree.replace(nodes=nodes)


def add(
    tree: SumTree, indices: Array, values: Array, *, power: float = 1.0, limit: Array | float
) -> SumTree:
    """Add to leaves, but leave the nodes above stale until `repair`.

    A leaf x becomes `min((x^(1 / power) + values)^power, limit)`: priorities whose powers are the
    leaves add up themselves. Where an index occurs more than once, all of its values count.

    Args:
      tree: a tree of sums.
      indices: `[B]` int32; rows outside `[0, capacity)` are skipped.
      values: `[B]` float32, not negative.
      power: of what is added up, positive.
      limit: `[]`, the largest leaf to come of it.
    """
    indices = as_int32("indices", indices, tree.capacity)
    inside = jnp.minimum(indices, tree.capacity - 1)
    slots = jnp.where(indices < tree.capacity, indices, tree.nodes.size)
    before = get(tree, inside) ** (1 / power)
    values = jax.lax.stop_gradient(values)
    nodes = buffer.add(buffer.write(tree.nodes, slots, before), slots, values)
    sums = get(tree.replace(nodes=nodes), inside)
    return put(tree.replace(nodes=nodes), indices, jnp.minimum(sums**power, limit))


def repair(tree: SumTree, indices: Array) -> SumTree:
    """Recompute every node above the leaves `indices` (`[B]` int32; out of range is ignored)."""
    indices = as_int32("indices", indices, tree.capacity)
    levels = _levels(tree.capacity, tree.branching)
    nodes = tree.nodes
    # Repairing a parent that did not change is harmless.
    parents = jnp.where((indices >= 0) & (indices < tree.capacity), indices, 0).astype(jnp.uint32)
    for below, above in itertools.pairwise(levels.starts[: levels.large]):
        parents = parents // tree.branching
        families = below // tree.branching + parents
        children = buffer.read_few(_rows(nodes, tree), families)  # [B, b]
        nodes = buffer.write(nodes, above + parents, _combine(children, tree.reduce))
    start, size = levels.starts[levels.large - 1], levels.sizes[levels.large - 1]
    top = _above(nodes[start : start + size], levels.sizes[levels.large :], tree)
    if top:
        nodes = buffer.write(nodes, jnp.arange(start + size, nodes.size), jnp.concatenate(top))
    # From what is written, not from what it was made of: that read might come after the write.
    return tree.replace(nodes=nodes, root=_root(nodes, tree))


def rebuild(tree: SumTree, leaves: Array) -> SumTree:
    """Replace all leaves (`[C]` float32, not checked) and recompute every node."""
    first, *others = _levels(tree.capacity, tree.branching).sizes
    leaves = jax.lax.stop_gradient(leaves.astype(jnp.float32))
    padded = _pad(leaves, first, tree.reduce)
    nodes = jnp.concatenate([padded, *_above(padded, others, tree)])
    return tree.replace(nodes=nodes, root=_root(nodes, tree))


def regrown(like: SumTree, leaves: Array) -> SumTree:
    """Return a tree like another, or trees of several seeds, of the leaves `[..., C]`; compiled."""
    grow = functools.partial(rebuild, like)
    for _ in leaves.shape[1:]:
        grow = jax.vmap(grow)
    return jax.jit(grow)(leaves)


def get(tree: SumTree, indices: Array) -> Array:
    """Read leaves: `[B]` int32 within the capacity -> `[B]` float32."""
    return buffer.read(tree.nodes, slots_within(indices, tree.capacity))


def leaves(tree: SumTree) -> Array:
    """Return all leaves, `[C]` float32."""
    return tree.nodes[..., : tree.capacity]  # of several seeds, `[..., C]`


def total(tree: SumTree) -> Array:
    """Return the sum (or minimum) of all leaves, `[]` float32."""
    return tree.root


def sample(tree: SumTree, key: Array, batch_size: int, sampling: Sampling = "stratified") -> Array:
    """Draw leaves in proportion to their values: `[batch_size]` int32.

    A leaf of value 0 is never drawn while any leaf is positive. If all are 0 the result is
    meaningless (the caller looks at `total`).

    Args:
      tree: a tree of sums.
      key: PRNG key.
      batch_size: number of draws B.
      sampling: "stratified" cuts the total into B equal ranges and draws once in each (Schaul et
        al. 2016, App. B.2.1); "systematic" draws at the same place in all of them, with a single
        random number (Carpenter et al. 1999); "iid" draws independently. A leaf's expected share
        of the batch is the same.

    Raises:
      ValueError: `sampling` is none of these.
    """
    return at_shares(tree, shares(key, batch_size, sampling))


def shares(key: Array, batch_size: int, sampling: Sampling) -> Array:
    """Draw where in the total `sample` looks: `[batch_size]` uint32, in units of total / 2^32."""
    check_choice("sampling", sampling, SAMPLINGS)
    bits = numerics.bits(key, () if sampling == "systematic" else (batch_size,))
    if sampling != "iid":
        edges = np.array([(i << 32) // batch_size for i in range(batch_size + 1)])
        starts, widths = edges[:-1].astype(np.uint32), np.diff(edges)
        if widths.max() < 1 << 32:  # else the only range is the total
            bits = numerics.scaled(bits, jnp.asarray(widths.astype(np.uint32)))
        bits = bits + starts
    return bits


def at_shares(tree: SumTree, shares: Array) -> Array:
    """Return the leaves `[B]` int32 at these shares `[B]` uint32 of the total."""
    return find(tree, *numerics.fraction(shares, total(tree)))


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
    small = sum(levels.sizes[: levels.large])  # where the small levels begin
    rest = jnp.broadcast_to(jnp.asarray(rest, jnp.float32), target.shape)
    walk = (jnp.zeros(target.shape, jnp.int32), target, rest)
    # On their own: they are in the cache.
    starts = [start - small for start in levels.starts[levels.large :]]
    walk = _descend(_rows(tree.nodes[small:], tree), starts, walk)
    return _descend(_rows(tree.nodes, tree), levels.starts[: levels.large], walk)[0]


_Walk = tuple[Array, Array, Array]  # node [B] in its level, target [B] within it, rest [B]


def _descend(rows: Array, starts: Sequence[int], walk: _Walk) -> _Walk:
    """Choose a child at each level, from the last of `starts` to the first.

    `rows` `[n, b]` are nodes, one row for the children of one parent; `starts` are where in them
    the levels begin.
    """
    branching = rows.shape[1]

    def family(turn: int, walk: _Walk) -> Array:
        return starts[-1 - turn] // branching + walk[0]

    def step(turn: int, walk: _Walk, children: Array) -> _Walk:  # children [B, b]
        del turn
        node, target, rest = walk
        start = chosen_start = jnp.zeros_like(target)
        chosen = jnp.zeros_like(node)
        for child, value in enumerate(_columns(children)):
            here = (value > 0) & (start <= target)
            # Not `jnp.where`, a function to be traced and called: dozens of them are.
            chosen = jax.lax.select(here, jax.lax.full_like(node, child), chosen)
            chosen_start = jax.lax.select(here, start, chosen_start)
            start = start + value
        return node * branching + chosen, *numerics.floor(target - chosen_start, rest)

    return buffer.walk(rows, len(starts), family, step, walk)


def check_valid(tree: SumTree) -> None:
    """Check a concrete tree's invariants.

    Raises:
      ValueError: a leaf is NaN, infinite or negative, padding is not neutral, or a node differs
        from what its children give.
    """
    live = np.asarray(leaves(tree))
    bad = ~np.isfinite(live) | (live < 0)
    if tree.reduce == "min":
        bad = np.isnan(live) | (live < 0)
    if bad.any():
        raise ValueError(f"leaf {bad.argmax()} is {live[bad.argmax()]}")
    # Compiled: operation by operation, every size of tree would be dozens of programs.
    fresh = jax.jit(rebuild)(tree, live)
    if tree.root != fresh.root:
        raise ValueError(f"the root is {tree.root}, its children give {fresh.root}")
    nodes, children = np.asarray(tree.nodes), np.asarray(fresh.nodes)
    if (nodes != children).any():
        at = (nodes != children).argmax()
        raise ValueError(f"node {at} is {nodes[at]}, its children give {children[at]}")


@functools.cache
def _levels(capacity: int, branching: int) -> _Levels:
    """Lay out the levels below the root."""
    sizes, size = [], capacity
    while size > 1 or not sizes:
        sizes.append(size)
        size = math.ceil(size / branching)
    padded = tuple(math.ceil(size / branching) * branching for size in sizes)
    large = 1 + sum(size > _SMALL for size in padded[1:])
    return _Levels(padded, tuple(itertools.accumulate(padded[:-1], initial=0)), large)


def _set_one(tree: SumTree, index: Array, value: Array) -> SumTree:
    """Write one leaf and its ancestors, as `set` does."""
    levels = _levels(tree.capacity, tree.branching)
    valid, value = _checked(tree, index, value)
    # Unsigned: quotients and remainders of signed numbers take a dozen operations more, each.
    index = jnp.clip(index, 0, tree.capacity - 1).astype(jnp.uint32)
    paths = [index // tree.branching**level for level in range(len(levels.sizes))]
    places = [start + path for start, path in zip(levels.starts, paths, strict=True)]
    families = jnp.stack(places) // tree.branching  # rows of the siblings at each level
    rows = buffer.read_few(_rows(tree.nodes, tree), families)
    written = [value]
    for level, path in enumerate(paths):
        mine = path % tree.branching
        if level == 0:
            mine = jnp.where(valid, mine, tree.branching)  # nobody's
        # Scalars, one by one: XLA would compute a vector's chain anew for each of its entries.
        family = [
            jax.lax.select(mine == child, written[-1], rows[level, child])
            for child in range(tree.branching)
        ]
        written.append(_join(family, tree.reduce))
    places[0] = jnp.where(valid, index, tree.nodes.size)
    *written, root = buffer.once(written)
    nodes = buffer.write(tree.nodes, jnp.stack(places), jnp.stack(written))
    return tree.replace(nodes=nodes, root=root)


def _checked(tree: SumTree, indices: Array, values: Array) -> tuple[Array, Array]:
    """Return which rows may be written, and their values, capped."""
    valid = (indices >= 0) & (indices < tree.capacity) & jnp.isfinite(values) & (values >= 0)
    capped = jnp.minimum(jax.lax.stop_gradient(values), _LARGEST_TOTAL / tree.capacity)
    return valid, capped.astype(jnp.float32)


def _rows(nodes: Array, tree: SumTree) -> Array:
    return nodes.reshape(-1, tree.branching)


def _above(level: Array, sizes: Sequence[int], tree: SumTree) -> list[Array]:
    """Compute the levels of these sizes, each from the one below, beginning with `level`."""
    levels = []
    for size in sizes:
        parents = _combine(level.reshape(-1, tree.branching), tree.reduce)
        level = _pad(parents, size, tree.reduce)
        levels.append(level)
    return levels


def _root(nodes: Array, tree: SumTree) -> Array:
    return buffer.once(_combine(nodes[None, -tree.branching :], tree.reduce)[0])


def _neutral(reduce: str) -> float:
    return 0.0 if reduce == "sum" else math.inf


def _combine(children: Array, reduce: str) -> Array:
    """Reduce `[n, b]` to `[n]`."""
    return _join(_columns(children), reduce)


def _columns(rows: Array) -> list[Array]:
    """Take `[..., b]` apart: b arrays `[...]`."""
    last = rows.ndim - 1
    return [jax.lax.index_in_dim(rows, i, last, keepdims=False) for i in range(rows.shape[-1])]


def _join(columns: list[Array], reduce: str) -> Array:
    """Reduce children to their parent, in a fixed order so that every path gives the same bits."""
    join = jnp.add if reduce == "sum" else jnp.minimum
    while len(columns) > 1:
        columns = [functools.reduce(join, columns[i : i + 2]) for i in range(0, len(columns), 2)]
    return columns[0]


def _pad(values: Array, size: int, reduce: str) -> Array:
    return jnp.pad(values, (0, size - values.size), constant_values=_neutral(reduce))
