"""Sum trees over priorities (tree leaves), with updates and sampling in logarithmic time.

Example:
  >>> tree = init(4)
  >>> tree = set(tree, jnp.array([0, 2]), jnp.array([1.0, 3.0]))
  >>> total(tree).item()
  4.0
  >>> find(tree, jnp.array([0.5, 1.5])).tolist()
  [0, 2]

When a child changes, its parent becomes the sum of all children; no differences are added.
Rounding errors therefore do not accumulate, and an updated tree is bitwise identical to a tree that
`rebuild` computes from the same leaves. With `reduce="min"` or "max",
nodes are minima or maxima instead of sums.

A single array contains all levels, leaves first, to reduce dispatch overhead, in rows of 128 nodes.
Each level is padded to a multiple of the branching factor with the identity element (0, or infinity
for minima). The root is a separate scalar, so reading the root does not delay the next write to the
array.

Batched writes scatter into the large levels and recompute the small levels completely. Writing a
single leaf gathers the children of all ancestors in one operation and scatters all results in
another. On accelerators, writes process two levels at a time, and so do draws on TPU, where
rounding can select a neighbouring leaf (`_internal.wide_rows`). Gradients do not flow through a
tree.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxreplay import buffer, numerics
from jaxreplay._internal import wide_rows
from jaxreplay._internal.arguments import as_int32, check_choice, slots_within
from jaxreplay._internal.platforms import by_platform
from jaxreplay.buffer import Buffer
from jaxreplay.types import Array

Sampling = Literal["stratified", "systematic", "iid"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)
Reduction = Literal["sum", "min", "max"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)

# Levels with at most this many nodes are recomputed completely, which is cheaper than a scatter.
_SMALL = 512
# XLA divides by multiplying with the reciprocal. If the total exceeds 2^126, its reciprocal is
# denormal and flushed to 0, and all probabilities become 0. Using 2^125 is a margin for rounding.
_LARGEST_TOTAL = 2.0**125


class _Levels(NamedTuple):
    """Layout of the levels in `SumTree.nodes`, from the leaves up."""

    sizes: tuple[int, ...]  # padded number of nodes in each level, without the root
    starts: tuple[int, ...]  # index of the first node in each level
    end: int  # index after the last node of all levels
    large: int  # number of levels updated by scatters: the leaves, and levels larger than _SMALL


class SumTree(struct.PyTreeNode):
    """Tree of sums (or minima, or maxima) whose leaves are `capacity` priorities."""

    nodes: Buffer  # [R, 128] float32, all levels from the leaves up, row by row, without the root
    root: Array  # [] float32, sum, minimum or maximum of all leaves
    capacity: int = struct.field(pytree_node=False)
    branching: int = struct.field(pytree_node=False)
    reduce: Reduction = struct.field(pytree_node=False)


def init(capacity: int, branching: int = 8, reduce: Reduction = "sum") -> SumTree:
    """Return a tree whose leaves are all 0, or infinity for minima.

    Args:
      capacity: number of leaves C.
      branching: number of children per node.
      reduce: "sum", or "min" or "max" for a tree of minima or maxima.

    Raises:
      ValueError: If `capacity` is below 1, `branching` is below 2, or `reduce` is unknown.
    """
    check_choice("reduce", reduce, REDUCTIONS)
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, got {capacity}")
    if branching < 2:
        raise ValueError(f"branching must be at least 2, got {branching}")
    shapes = _stored(capacity, branching), ()
    nodes, root = (jnp.full(shape, _neutral(reduce), jnp.float32) for shape in shapes)
    return SumTree(nodes, root, capacity, branching, reduce)


def set(tree: SumTree, indices: Array, values: Array) -> SumTree:
    """Set leaf values, recompute all ancestors and return the new tree.

    Values that are NaN, infinite or negative are skipped, as are indices outside of
    `[0, capacity)`. Values are clipped to 2^125 / capacity, so sums do not overflow and 1 / total
    is a normal float32.

    Args:
      tree: the tree.
      indices: `[B]` int32. For duplicate indices, it is unspecified which value is written.
      values: `[B]` float32, non-negative.
    """
    indices, values = as_int32("indices", indices, tree.capacity), jnp.asarray(values)
    if indices.size == 1:
        return _set_one(tree, indices.reshape(()), values.reshape(()))
    return repair(put(tree, indices, values), indices)


def put(tree: SumTree, indices: Array, values: Array, *, raise_only: bool = False) -> SumTree:
    """Set leaf values like `set`, but without updating their ancestors; call `repair` afterwards.

    Args:
      tree: the tree.
      indices: `[B]` int32.
      values: `[B]` float32, non-negative.
      raise_only: whether to write the maximum of a leaf's old value and all its new values.
    """
    indices = as_int32("indices", indices, tree.capacity)
    valid, values = _validate(tree, indices, values)
    slots = jnp.where(valid, indices, tree.nodes.size)
    nodes = buffer.write_elements(tree.nodes, slots, values, "max" if raise_only else "set")
    return tree.replace(nodes=nodes)


def add(
    tree: SumTree, indices: Array, values: Array, *, power: float = 1.0, limit: Array | float
) -> SumTree:
    """Add `values` to priorities p, stored as leaves `p^power`, and return the new tree.

    A leaf x becomes `min((x^(1 / power) + value)^power, limit)`. The values of duplicate indices
    are summed. Ancestors are not updated; call `repair` afterwards.

    Args:
      tree: a tree of sums.
      indices: `[B]` int32; indices outside of `[0, capacity)` are ignored.
      values: `[B]` float32, non-negative.
      power: priority exponent, positive.
      limit: `[]`, upper bound for the new leaves.
    """
    indices = as_int32("indices", indices, tree.capacity)
    inside = jnp.minimum(indices, tree.capacity - 1)
    slots = jnp.where(indices < tree.capacity, indices, tree.nodes.size)
    before = get(tree, inside) ** (1 / power)
    values = jax.lax.stop_gradient(values)
    nodes = buffer.write_elements(tree.nodes, slots, before)
    nodes = buffer.write_elements(nodes, slots, values, "add")
    sums = get(tree.replace(nodes=nodes), inside)
    return put(tree.replace(nodes=nodes), indices, jnp.minimum(sums**power, limit))


def repair(tree: SumTree, indices: Array) -> SumTree:
    """Recompute all ancestors of leaves `indices` `[B]` int32. Out-of-range indices are ignored."""
    indices = as_int32("indices", indices, tree.capacity)
    # Replace out-of-range indices by 0, because recomputing unchanged nodes has no effect.
    slots = jnp.where((indices >= 0) & (indices < tree.capacity), indices, 0).astype(jnp.uint32)
    nodes = _repair(tree, slots)
    # Compute the root from the new nodes. Reading the old nodes after the write would force a copy.
    return tree.replace(nodes=nodes, root=_root(nodes, tree))


def _repair_on_cpu(tree: SumTree, slots: Array) -> Array:
    levels = _levels(tree.capacity, tree.branching)
    nodes, parents = tree.nodes.ravel(), slots
    for below, above in itertools.pairwise(levels.starts[: levels.large]):
        parents = parents // tree.branching
        families = below // tree.branching + parents
        children = buffer.read(_rows(nodes, tree), families)  # [B, branching]
        nodes = buffer.write(nodes, above + parents, _combine(children, tree.reduce))
    start, size = levels.starts[levels.large - 1], levels.sizes[levels.large - 1]
    top = _above(nodes[start : start + size], levels.sizes[levels.large :], tree)
    if top:
        nodes = buffer.write(nodes, jnp.arange(start + size, levels.end), jnp.concatenate(top))
    return nodes.reshape(tree.nodes.shape)


def _repair_wide(tree: SumTree, slots: Array) -> Array:
    if tree.branching != wide_rows.CHILDREN:
        return _repair_on_cpu(tree, slots)
    levels = _levels(tree.capacity, tree.branching)
    join = functools.partial(_join, reduce=tree.reduce)
    neutral = _neutral(tree.reduce)
    return wide_rows.repair(tree.nodes, slots, levels.sizes, levels.starts, join, neutral)


_repair = by_platform(_repair_wide, cpu=_repair_on_cpu)


def rebuild(tree: SumTree, leaves: Array) -> SumTree:
    """Replace all leaves by `leaves` (`[C]` float32, not validated) and recompute every node."""
    size, *upper_sizes = _levels(tree.capacity, tree.branching).sizes
    leaves = jax.lax.stop_gradient(leaves.astype(jnp.float32))
    padded = _pad(leaves, size, tree.reduce)
    nodes = jnp.concatenate([padded, *_above(padded, upper_sizes, tree)])
    shape = _stored(tree.capacity, tree.branching)
    nodes = _pad(nodes, math.prod(shape), tree.reduce).reshape(shape)
    return tree.replace(nodes=nodes, root=_root(nodes, tree))


def rebuild_batched(tree: SumTree, leaves: Array) -> SumTree:
    """Rebuild vmapped trees from leaves `[..., C]` in a single compiled program."""
    build = functools.partial(rebuild, tree)
    for _ in leaves.shape[1:]:
        build = jax.vmap(build)
    return jax.jit(build)(leaves)


@functools.cache  # one function for each factor, so that it is compiled once
def scaling(factor: float) -> Callable[[SumTree], SumTree]:
    """Return a function that multiplies all nodes by `factor`; powers of two keep sums exact."""
    return lambda tree: tree.replace(nodes=tree.nodes * factor, root=tree.root * factor)


def get(tree: SumTree, indices: Array) -> Array:
    """Return the leaves `[B]` float32 at `indices` (`[B]` int32, less than the capacity)."""
    return buffer.read_elements(tree.nodes, slots_within(indices, tree.capacity))


def leaves(tree: SumTree) -> Array:
    """Return all leaves, `[C]` float32."""
    lead = tree.nodes.shape[:-2]  # of batched trees
    return tree.nodes.reshape(*lead, -1)[..., : tree.capacity]


def total(tree: SumTree) -> Array:
    """Return the sum (or minimum, or maximum) of all leaves, `[]` float32."""
    return tree.root


def sample(
    tree: SumTree,
    key: Array,
    batch_size: int,
    sampling: Sampling = "stratified",
    size: Array | None = None,
) -> Array:
    """Draw leaf indices `[batch_size]` int32 with probabilities proportional to the leaves.

    Leaves with value 0 are never drawn, unless all are 0 (see `size`).

    Args:
      tree: a tree of sums.
      key: PRNG key.
      batch_size: number of draws B.
      sampling: "stratified" divides the total into B equal ranges and draws uniformly from each
        range (Schaul et al. 2016, App. B.2.1). "systematic" uses the same random offset in every
        range (Carpenter et al. 1999). "iid" draws independently. All have equal expected counts.
      size: `[]` int32, positive. If all leaves are 0, draws are uniform in [0, size), or undefined
        if `size` is None.

    Raises:
      ValueError: If `sampling` is unknown.
    """
    return at_shares(tree, shares(key, batch_size, sampling), size)


def shares(key: Array, batch_size: int, sampling: Sampling) -> Array:
    """Draw sampling positions `[batch_size]` uint32, in units of total / 2^32."""
    check_choice("sampling", sampling, SAMPLINGS)
    bits = numerics.bits(key, () if sampling == "systematic" else (batch_size,))
    if sampling != "iid":
        edges = np.array([(i << 32) // batch_size for i in range(batch_size + 1)])
        starts, widths = edges[:-1].astype(np.uint32), np.diff(edges)
        if widths.max() < 1 << 32:  # otherwise batch_size is 1
            bits = numerics.multiply_high(bits, jnp.asarray(widths.astype(np.uint32)))
        bits = bits + starts
    return bits


def at_shares(tree: SumTree, shares: Array, size: Array | None = None) -> Array:
    """Return the leaf indices at positions `shares` `[B]` uint32, in units of total / 2^32.

    If all leaves are 0, positions are looked up among `size` equal leaves, or the result is
    undefined if `size` is None.
    """
    indices = find(tree, *numerics.fraction(shares, total(tree)))
    if size is None:
        return indices
    evenly = numerics.multiply_high(shares, size.astype(jnp.uint32)).astype(jnp.int32)
    return jnp.where(total(tree) > 0, indices, evenly)


def find(tree: SumTree, target: Array, rest: Array | float = 0.0) -> Array:
    """Return the first leaves whose inclusive cumulative sums exceed `target + rest`.

    At each node, the search descends into the last positive child whose exclusive cumulative sum is
    at most the target. Targets that reach the total after rounding select the last positive leaf.

    Args:
      tree: a tree of sums.
      target: `[B]` float32 in [0, total).
      rest: `[B]` float32, remainder of the exact target after rounding to float32.

    Returns:
      `[B]` int32 leaf indices.
    """
    rest = jnp.broadcast_to(jnp.asarray(rest, jnp.float32), target.shape)
    return _find(tree, target, rest)


def _find_in_rows(tree: SumTree, target: Array, rest: Array) -> Array:
    levels = _levels(tree.capacity, tree.branching)
    small = sum(levels.sizes[: levels.large])  # index of the first node of the small levels
    walk = (jnp.zeros(target.shape, jnp.int32), target, rest)

    def descend(nodes: Array, starts: Sequence[int], walk: _Walk) -> _Walk:
        rows = _rows(nodes, tree)
        return _descend(lambda row: _columns(buffer.read(rows, row)), starts, walk, tree.branching)

    # Search the small levels in a separate array, which stays in the cache.
    starts = [start - small for start in levels.starts[levels.large :]]
    nodes = tree.nodes.ravel()
    walk = descend(nodes[small : levels.end], starts, walk)
    return descend(nodes, levels.starts[: levels.large], walk)[0]


def _find_in_nodes(tree: SumTree, target: Array, rest: Array) -> Array:
    """Find leaves as `find` does, but read each child separately: XLA on GPU fuses these reads."""

    def children(row: Array) -> list[Array]:
        first = row * tree.branching
        places = [first + child for child in range(tree.branching)]
        return [buffer.read_elements(tree.nodes, place) for place in places]

    starts = _levels(tree.capacity, tree.branching).starts
    walk = (jnp.zeros(target.shape, jnp.int32), target, rest)
    return _descend(children, starts, walk, tree.branching)[0]


def _find_in_wide_rows(tree: SumTree, target: Array, rest: Array) -> Array:
    if tree.branching != wide_rows.CHILDREN:
        return _find_in_rows(tree, target, rest)
    levels = _levels(tree.capacity, tree.branching)
    return wide_rows.find(tree.nodes, target, rest, levels.sizes, levels.starts)


_find = by_platform(_find_in_nodes, cpu=_find_in_rows, tpu=_find_in_wide_rows)


_Walk = tuple[Array, Array, Array]  # node in its level, target within the node, rest; all [B]


def _descend(
    read: Callable[[Array], list[Array]], starts: Sequence[int], walk: _Walk, branching: int
) -> _Walk:
    """Descend through the levels from the last to the first entry of `starts`.

    `read` returns an array `[B]` for each child, given the rows `[B]` of the children in nodes of
    shape `[n, branching]`. Level i begins at node `starts[i]`. The loop is
    unrolled, because a compiled loop would copy `walk` in every iteration.
    """
    for level_start in reversed(starts):
        node, target, rest = walk
        children = read(level_start // branching + node)
        start = chosen_start = jnp.zeros_like(target)
        chosen = jnp.zeros_like(node)
        for child, value in enumerate(children):
            descend = (value > 0) & (start <= target)
            # `lax.select` traces and compiles faster than `jnp.where` in this unrolled loop.
            chosen = jax.lax.select(descend, jax.lax.full_like(node, child), chosen)
            chosen_start = jax.lax.select(descend, start, chosen_start)
            start = start + value
        walk = (node * branching + chosen, *numerics.floor(target - chosen_start, rest))
        walk = buffer.once(walk)  # otherwise, every level would repeat the levels above it
    return walk


def check_valid(tree: SumTree) -> None:
    """Check the invariants of a concrete tree.

    Raises:
      ValueError: If a leaf is NaN, infinite or negative, padding is not the identity element, or a
        node is not the sum (or minimum, or maximum) of its children.
    """
    live = np.asarray(leaves(tree))
    bad = ~np.isfinite(live) | (live < 0)
    if tree.reduce == "min":
        bad = np.isnan(live) | (live < 0)
    if bad.any():
        at = bad.argmax()
        raise ValueError(f"leaf {at} must be finite and non-negative, got {live[at]}")
    # Use jit, because eager operations would compile dozens of programs for every tree size.
    expected = jax.jit(rebuild)(tree, live)
    if tree.root != expected.root:
        raise ValueError(f"the root must be {expected.root} given its children, got {tree.root}")
    nodes, correct = np.ravel(tree.nodes), np.ravel(expected.nodes)
    if (nodes != correct).any():
        at = (nodes != correct).argmax()
        raise ValueError(f"node {at} must be {correct[at]} given its children, got {nodes[at]}")


@functools.cache
def _levels(capacity: int, branching: int) -> _Levels:
    """Compute the layout of the levels below the root."""
    sizes, size = [], capacity
    while size > 1 or not sizes:
        unit = wide_rows.aligned(branching) if size > _SMALL else branching
        sizes.append(math.ceil(size / unit) * unit)
        size = sizes[-1] // branching
    *starts, end = itertools.accumulate(sizes, initial=0)
    large = 1 + sum(size > _SMALL for size in sizes[1:])
    return _Levels(tuple(sizes), tuple(starts), end, large)


def _stored(capacity: int, branching: int) -> tuple[int, int]:
    """Return the shape of `nodes`, which may have more elements than all levels together."""
    return wide_rows.stored(_levels(capacity, branching).end, branching)


def _set_one(tree: SumTree, index: Array, value: Array) -> SumTree:
    """Set a single leaf and recompute its ancestors, as `set` does."""
    valid, value = _validate(tree, index, value)
    # Unsigned division and remainder require about a dozen operations fewer than signed ones.
    index = jnp.clip(index, 0, tree.capacity - 1).astype(jnp.uint32)
    written = _path(tree, index, value, valid)
    targets = _targets(tree, index)
    targets[0] = jnp.where(valid, index, tree.nodes.size)
    *written, root = buffer.once(written)
    nodes = buffer.write_elements(tree.nodes, jnp.stack(targets), jnp.stack(written))
    return tree.replace(nodes=nodes, root=root)


def _targets(tree: SumTree, index: Array) -> list[Array]:
    """Return the indices in `nodes` of leaf `index` `[]` uint32 and of its ancestors."""
    starts = enumerate(_levels(tree.capacity, tree.branching).starts)
    return [start + index // tree.branching**level for level, start in starts]


def _path_on_cpu(tree: SumTree, index: Array, value: Array, valid: Array) -> list[Array]:
    """Return the values of leaf `index` and of its ancestors after writing `value` if `valid`."""
    families = jnp.stack(_targets(tree, index)) // tree.branching  # row of siblings at each level
    rows = buffer.read(_rows(tree.nodes, tree), families)
    written = [value]
    for level in range(families.size):
        position = index // tree.branching**level % tree.branching
        if level == 0:
            position = jnp.where(valid, position, tree.branching)  # selects no child
        # Use scalars: with vectors, XLA would recompute all lower levels for every element.
        family = [
            jax.lax.select(position == child, written[-1], rows[level, child])
            for child in range(tree.branching)
        ]
        written.append(_join(family, tree.reduce))
    return written


def _path_wide(
    tree: SumTree, index: Array, value: Array, valid: Array, *, apart: bool = False
) -> list[Array]:
    if tree.branching != wide_rows.CHILDREN:
        return _path_on_cpu(tree, index, value, valid)
    join = functools.partial(_join, reduce=tree.reduce)
    targets = jnp.stack(_targets(tree, index))
    return wide_rows.ancestors(tree.nodes, targets, value, valid, join, apart=apart)


_path_apart = functools.partial(_path_wide, apart=True)  # for GPU: XLA fuses these reads


_path = by_platform(_path_apart, cpu=_path_on_cpu, tpu=_path_wide)


def _validate(tree: SumTree, indices: Array, values: Array) -> tuple[Array, Array]:
    """Validate updates; return a mask of valid updates, and the clipped values."""
    valid = (indices >= 0) & (indices < tree.capacity) & jnp.isfinite(values) & (values >= 0)
    capped = jnp.minimum(jax.lax.stop_gradient(values), _LARGEST_TOTAL / tree.capacity)
    return valid, capped.astype(jnp.float32)


def _rows(nodes: Array, tree: SumTree) -> Array:
    return nodes.reshape(-1, tree.branching)


def _above(level: Array, sizes: Sequence[int], tree: SumTree) -> list[Array]:
    """Compute the levels above `level`, with the given sizes, from the bottom up."""
    levels = []
    for size in sizes:
        parents = _combine(level.reshape(-1, tree.branching), tree.reduce)
        level = _pad(parents, size, tree.reduce)
        levels.append(level)
    return levels


def _root(nodes: Array, tree: SumTree) -> Array:
    levels = _levels(tree.capacity, tree.branching)
    start = levels.starts[-1]
    children = wide_rows.part(nodes, start, levels.end - start)
    return buffer.once(_combine(children[None], tree.reduce)[0])


def _neutral(reduce: str) -> float:
    return math.inf if reduce == "min" else 0.0


def _combine(children: Array, reduce: str) -> Array:
    """Reduce children `[n, branching]` to parents `[n]`."""
    return _join(_columns(children), reduce)


def _columns(rows: Array) -> list[Array]:
    """Split `[..., b]` into b arrays `[...]`."""
    last = rows.ndim - 1
    return [jax.lax.index_in_dim(rows, i, last, keepdims=False) for i in range(rows.shape[-1])]


def _join(columns: list[Array], reduce: str) -> Array:
    """Reduce children to their parent in a fixed order, which makes rounding reproducible."""
    join = {"sum": jnp.add, "min": jnp.minimum, "max": jnp.maximum}[reduce]
    while len(columns) > 1:
        columns = [functools.reduce(join, columns[i : i + 2]) for i in range(0, len(columns), 2)]
    return columns[0]


def _pad(values: Array, size: int, reduce: str) -> Array:
    return jnp.pad(values, (0, size - values.size), constant_values=_neutral(reduce))
