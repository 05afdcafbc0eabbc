"""Sum trees: priorities as leaves, with updates and proportional sampling in logarithmic time.

Example:
  >>> tree = init(4)
  >>> tree = set(tree, jnp.array([0, 2]), jnp.array([1.0, 3.0]))
  >>> total(tree).item()
  4.0
  >>> find(tree, jnp.array([0.5, 1.5])).tolist()
  [0, 2]

When a child changes, its parent is recomputed from all children. Differences are never added, so
errors do not accumulate, and a tree equals bit for bit the one that `rebuild` makes of its leaves.
With `reduce="min"`, nodes are minima instead of sums.

One array contains all levels, leaves first, which keeps dispatch cheap. Each level is padded to a
multiple of the branching factor with the neutral element (0 for sums, infinity for minima). The
root is a separate scalar: reading it does not make the next write to the array wait.

A write of a batch scatters into the large levels and recomputes the small ones completely. A write
of one leaf gathers the children of all its ancestors at once and scatters all results at once.
Trees carry no tangents: gradients stop at written values.
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

# Levels of at most this many nodes are recomputed completely, which is cheaper than a scatter.
_SMALL = 512
# By backend: CPUs are fast with short rows, accelerators with few levels.
_BRANCHING = {"cpu": 8, "gpu": 32, "tpu": 128}
# XLA multiplies by the reciprocal of a divisor. That of a total above 2^126 is denormal and flushed
# to 0, which makes all probabilities 0. The factor of 2 below this allows for rounding of sums.
_LARGEST_TOTAL = 2.0**125


class _Levels(NamedTuple):
    """Positions of the levels in `SumTree.nodes`, from the leaves up."""

    sizes: tuple[int, ...]  # padded, without the root
    starts: tuple[int, ...]  # index of the first node of each level
    large: int  # number of levels that are scattered into: leaves, and levels larger than _SMALL


class SumTree(struct.PyTreeNode):
    """A tree of sums (or minima) over `capacity` leaves."""

    nodes: Buffer  # [T] float32, all levels from the leaves up, without the root
    root: Array  # [] float32, sum or minimum of all leaves
    capacity: int = struct.field(pytree_node=False)
    branching: int = struct.field(pytree_node=False)
    reduce: Literal["sum", "min"] = struct.field(pytree_node=False)


def init(
    capacity: int, branching: int | None = None, reduce: Literal["sum", "min"] = "sum"
) -> SumTree:
    """Return a tree of empty leaves: 0 for sums, infinity for minima.

    Args:
      capacity: number of leaves C.
      branching: children per node; None is the default of the backend: 8 on CPU, 32 on GPU, 128 on
        TPU.
      reduce: "sum", or "min" for a tree of minima.

    Raises:
      ValueError: `capacity` is below 1, `branching` is below 2, or `reduce` is unknown.
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
    """Return the tree with new values of leaves, and all nodes above them recomputed.

    A leaf keeps its value if the index is outside of `[0, capacity)`, or the new value is NaN,
    infinite or negative. Values are clipped to 2^125 / capacity, so that sums do not overflow and
    1 / total is a normal float32.

    Args:
      tree: the tree.
      indices: `[B]` int32; of a duplicate index, an unspecified one of its values is written.
      values: `[B]` float32, at least 0.
    """
    indices, values = as_int32("indices", indices, tree.capacity), jnp.asarray(values)
    if indices.size == 1:
        return _set_one(tree, indices.reshape(()), values.reshape(()))
    return repair(put(tree, indices, values), indices)


def put(tree: SumTree, indices: Array, values: Array, *, raise_only: bool = False) -> SumTree:
    """Write leaves as `set` does, without the nodes above, which are stale until `repair`.

    Args:
      tree: the tree.
      indices: `[B]` int32.
      values: `[B]` float32, at least 0.
      raise_only: whether a leaf becomes the maximum of its old value and all its new ones.
    """
    indices = as_int32("indices", indices, tree.capacity)
    valid, values = _validate(tree, indices, values)
    slots = jnp.where(valid, indices, tree.nodes.size)
    nodes = buffer.write(tree.nodes, slots, values, "max" if raise_only else "set")
    return tree.replace(nodes=nodes)


def add(
    tree: SumTree, indices: Array, values: Array, *, power: float = 1.0, limit: Array | float
) -> SumTree:
    """Add to the priorities p behind leaves `p^power`; nodes above are stale until `repair`.

    A leaf x becomes `min((x^(1 / power) + value)^power, limit)`. All values of a duplicate index
    are added.

    Args:
      tree: a tree of sums.
      indices: `[B]` int32; indices outside of `[0, capacity)` are ignored.
      values: `[B]` float32, at least 0.
      power: exponent that makes leaves of priorities, positive.
      limit: `[]`, upper bound of the new leaves.
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
    """Recompute every node above the leaves `indices` (`[B]` int32); ignore those out of range."""
    indices = as_int32("indices", indices, tree.capacity)
    levels = _levels(tree.capacity, tree.branching)
    nodes = tree.nodes
    # Indices out of range become 0: recomputing an unchanged node is harmless.
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
    # Computed from the written nodes: a read of the old ones could follow the write, which copies.
    return tree.replace(nodes=nodes, root=_root(nodes, tree))


def rebuild(tree: SumTree, leaves: Array) -> SumTree:
    """Replace all leaves (`[C]` float32, not validated) and recompute every node."""
    first, *others = _levels(tree.capacity, tree.branching).sizes
    leaves = jax.lax.stop_gradient(leaves.astype(jnp.float32))
    padded = _pad(leaves, first, tree.reduce)
    nodes = jnp.concatenate([padded, *_above(padded, others, tree)])
    return tree.replace(nodes=nodes, root=_root(nodes, tree))


def rebuild_batched(tree: SumTree, leaves: Array) -> SumTree:
    """Rebuild a tree from leaves `[..., C]`, vmapped over the leading axes, in one program."""
    build = functools.partial(rebuild, tree)
    for _ in leaves.shape[1:]:
        build = jax.vmap(build)
    return jax.jit(build)(leaves)


def get(tree: SumTree, indices: Array) -> Array:
    """Return the leaves `[B]` float32 at `indices` (`[B]` int32, within the capacity)."""
    return buffer.read(tree.nodes, slots_within(indices, tree.capacity))


def leaves(tree: SumTree) -> Array:
    """Return all leaves, `[C]` float32."""
    return tree.nodes[..., : tree.capacity]  # [..., C] of vmapped trees


def total(tree: SumTree) -> Array:
    """Return the sum (or minimum) of all leaves, `[]` float32."""
    return tree.root


def sample(tree: SumTree, key: Array, batch_size: int, sampling: Sampling = "stratified") -> Array:
    """Draw indices of leaves `[batch_size]` int32 with probability leaf / total.

    A leaf of value 0 is never drawn. If all leaves are 0, the result is undefined: check `total`.

    Args:
      tree: a tree of sums.
      key: PRNG key.
      batch_size: number of draws B.
      sampling: "stratified" draws uniformly in each of B equal ranges of the total (Schaul et al.
        2016, App. B.2.1), "systematic" at the same random offset in each of them (Carpenter et al.
        1999), and "iid" independently. The expected number of draws of a leaf is the same.

    Raises:
      ValueError: `sampling` is unknown.
    """
    return at_shares(tree, shares(key, batch_size, sampling))


def shares(key: Array, batch_size: int, sampling: Sampling) -> Array:
    """Draw the positions of a sample: `[batch_size]` uint32, in units of total / 2^32."""
    check_choice("sampling", sampling, SAMPLINGS)
    bits = numerics.bits(key, () if sampling == "systematic" else (batch_size,))
    if sampling != "iid":
        edges = np.array([(i << 32) // batch_size for i in range(batch_size + 1)])
        starts, widths = edges[:-1].astype(np.uint32), np.diff(edges)
        if widths.max() < 1 << 32:  # otherwise batch_size is 1
            bits = numerics.scaled(bits, jnp.asarray(widths.astype(np.uint32)))
        bits = bits + starts
    return bits


def at_shares(tree: SumTree, shares: Array) -> Array:
    """Return the indices `[B]` int32 of the leaves at positions `shares` (`[B]` uint32)."""
    return find(tree, *numerics.fraction(shares, total(tree)))


def find(tree: SumTree, target: Array, rest: Array | float = 0.0) -> Array:
    """Find the leaves at which the cumulative sum of the leaves exceeds `target + rest`.

    At each node, the search descends to the last positive child with a cumulative sum before it of
    at most the target. A target at or above the total, by rounding, gives the last positive leaf.

    Args:
      tree: a tree of sums.
      target: `[B]` float32 in [0, total).
      rest: `[B]` float32, the rounding error of the target in float32.

    Returns:
      `[B]` int32 leaf indices.
    """
    levels = _levels(tree.capacity, tree.branching)
    small = sum(levels.sizes[: levels.large])  # index of the first node of the small levels
    rest = jnp.broadcast_to(jnp.asarray(rest, jnp.float32), target.shape)
    walk = (jnp.zeros(target.shape, jnp.int32), target, rest)
    # The small levels are an array of their own, which stays in the cache.
    starts = [start - small for start in levels.starts[levels.large :]]
    walk = _descend(_rows(tree.nodes[small:], tree), starts, walk)
    return _descend(_rows(tree.nodes, tree), levels.starts[: levels.large], walk)[0]


_Walk = tuple[Array, Array, Array]  # node [B] in its level, target [B] within it, rest [B]


def _descend(rows: Array, starts: Sequence[int], walk: _Walk) -> _Walk:
    """Choose a child at each level, from the last of `starts` to the first.

    `rows` `[n, b]` are nodes, with the children of one parent in each row. The level i begins at
    node `starts[i]`.
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
            descend = (value > 0) & (start <= target)
            # `lax.select` traces and compiles faster than `jnp.where`, and there are dozens.
            chosen = jax.lax.select(descend, jax.lax.full_like(node, child), chosen)
            chosen_start = jax.lax.select(descend, start, chosen_start)
            start = start + value
        return node * branching + chosen, *numerics.floor(target - chosen_start, rest)

    return buffer.walk(rows, len(starts), family, step, walk)


def check_valid(tree: SumTree) -> None:
    """Validate a concrete tree.

    Raises:
      ValueError: a leaf is NaN, infinite or negative, padding is not neutral, or a node is not the
        sum (or minimum) of its children.
    """
    live = np.asarray(leaves(tree))
    bad = ~np.isfinite(live) | (live < 0)
    if tree.reduce == "min":
        bad = np.isnan(live) | (live < 0)
    if bad.any():
        at = bad.argmax()
        raise ValueError(f"leaf {at} is {live[at]}: it must be finite and not negative")
    # Jitted, since eager operations would compile dozens of programs for every size of tree.
    expected = jax.jit(rebuild)(tree, live)
    if tree.root != expected.root:
        raise ValueError(f"the root is {tree.root}: it must be {expected.root}, by its children")
    nodes, correct = np.asarray(tree.nodes), np.asarray(expected.nodes)
    if (nodes != correct).any():
        at = (nodes != correct).argmax()
        raise ValueError(f"node {at} is {nodes[at]}: it must be {correct[at]}, by its children")


@functools.cache
def _levels(capacity: int, branching: int) -> _Levels:
    """Compute the layout of the levels below the root."""
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
    valid, value = _validate(tree, index, value)
    # Division and remainder of signed integers take a dozen operations more.
    index = jnp.clip(index, 0, tree.capacity - 1).astype(jnp.uint32)
    paths = [index // tree.branching**level for level in range(len(levels.sizes))]
    places = [start + path for start, path in zip(levels.starts, paths, strict=True)]
    families = jnp.stack(places) // tree.branching  # rows of the siblings at each level
    rows = buffer.read_few(_rows(tree.nodes, tree), families)
    written = [value]
    for level, path in enumerate(paths):
        position = path % tree.branching
        if level == 0:
            position = jnp.where(valid, position, tree.branching)  # none of the children
        # Scalars: for a vector, XLA would recompute all lower levels for each of its entries.
        family = [
            jax.lax.select(position == child, written[-1], rows[level, child])
            for child in range(tree.branching)
        ]
        written.append(_join(family, tree.reduce))
    places[0] = jnp.where(valid, index, tree.nodes.size)
    *written, root = buffer.once(written)
    nodes = buffer.write(tree.nodes, jnp.stack(places), jnp.stack(written))
    return tree.replace(nodes=nodes, root=root)


def _validate(tree: SumTree, indices: Array, values: Array) -> tuple[Array, Array]:
    """Return a mask of valid rows, and the clipped values."""
    valid = (indices >= 0) & (indices < tree.capacity) & jnp.isfinite(values) & (values >= 0)
    capped = jnp.minimum(jax.lax.stop_gradient(values), _LARGEST_TOTAL / tree.capacity)
    return valid, capped.astype(jnp.float32)


def _rows(nodes: Array, tree: SumTree) -> Array:
    return nodes.reshape(-1, tree.branching)


def _above(level: Array, sizes: Sequence[int], tree: SumTree) -> list[Array]:
    """Compute the levels of these sizes above `level`, each from the one below."""
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
    """Split `[..., b]` into b arrays `[...]`."""
    last = rows.ndim - 1
    return [jax.lax.index_in_dim(rows, i, last, keepdims=False) for i in range(rows.shape[-1])]


def _join(columns: list[Array], reduce: str) -> Array:
    """Reduce children to their parent, always in the same order, for identical rounding."""
    join = jnp.add if reduce == "sum" else jnp.minimum
    while len(columns) > 1:
        columns = [functools.reduce(join, columns[i : i + 2]) for i in range(0, len(columns), 2)]
    return columns[0]


def _pad(values: Array, size: int, reduce: str) -> Array:
    return jnp.pad(values, (0, size - values.size), constant_values=_neutral(reduce))
