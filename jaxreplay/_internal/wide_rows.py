"""Operations for accelerators on sum trees with 8 children per node.

On accelerators, every operation of a loop costs a microsecond or more, regardless of its size.
These functions therefore process two levels of a tree at a time, 64 descendants of a node, and
recompute more levels completely than on CPU. Sums equal the sums on CPU bit for bit. Trees are
stored in rows of 128 nodes, which TPUs read and write in place, vmapped or not. On CPU and GPU,
arrays `[n, 128]`, `[n * 128]` and `[n * 16, 8]` have the same layout in memory.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import buffer, numerics
from jaxreplay.types import Array

CHILDREN = 8
_ROW = 128  # nodes per row
# A node, its sibling, the other pair and the other four, as `(place ^ a & b) + c`.
_PAIR, _FOUR = 2**32 - 2, 2**32 - 4  # without the last bits
_SIBLINGS = np.array(
    [
        (0, 2**32 - 1, 0), (1, 2**32 - 1, 0), (2, _PAIR, 0), (2, _PAIR, 1),
        (4, _FOUR, 0), (4, _FOUR, 1), (4, _FOUR, 2), (4, _FOUR, 3),
    ],
    np.uint32,
)  # fmt: skip
_DENSE = 2**14  # largest level whose ancestors are recomputed completely
_TOP = 512  # largest level that is searched completely


def aligned(branching: int) -> int:
    """Return the block size, in nodes, to which the large levels of a tree are padded."""
    return math.lcm(_ROW, branching)


def stored(size: int, branching: int) -> tuple[int, int]:
    """Return the shape `(R, 128)` of an array that stores `size` nodes, including padding."""
    unit = aligned(branching) * (1 if size <= _TOP else 8)  # TPUs store arrays in tiles of 8 rows
    return math.ceil(size / unit) * unit // _ROW, _ROW


def part(nodes: Array, start: int, size: int) -> Array:
    """Return the `size` nodes from index `start` on, `[size]`, of nodes `[R, 128]` in row order."""
    first = start // _ROW
    rows = nodes[first : -(-(start + size) // _ROW)].ravel()
    return rows[start - first * _ROW :][:size]


Join = Callable[[list[Array]], Array]  # reduces children to their parent


def repair(
    nodes: Array,
    slots: Array,
    sizes: Sequence[int],
    starts: Sequence[int],
    join: Join,
    neutral: float,
) -> Array:
    """Recompute all ancestors of the leaves `slots` `[B]` uint32 and return the nodes.

    Args:
      nodes: `[R, 128]` float32, all levels from the leaves up, without the root.
      slots: `[B]` uint32, leaves.
      sizes: number of nodes of each level.
      starts: index of the first node of each level, a multiple of 128 for large levels.
      join: reduction of children to their parent.
      neutral: value of nodes that pad a level.
    """
    level = 0
    while sizes[level] > _DENSE:
        rows = buffer.read(nodes, starts[level] // _ROW + slots // _ROW)
        parents, grandparents = slots // CHILDREN, slots // CHILDREN**2
        several = _parents(rows, join)
        both = [
            _pick(several, parents % several.shape[1]),
            _pick(_parents(several, join), grandparents % 2),
        ]
        at = [starts[level + 1] + parents, starts[level + 2] + grandparents]
        nodes = buffer.write_elements(nodes, jnp.concatenate(at), jnp.concatenate(both))
        slots, level = grandparents, level + 2
    start = starts[level]
    children = part(nodes, start, sizes[level])
    first = (start + sizes[level]) // _ROW  # first row with nodes above
    above = [children[first * _ROW - start :]]
    for size in sizes[level + 1 :]:
        children = _parents(children, join)
        children = jnp.pad(children, (0, size - children.size), constant_values=neutral)
        above.append(children)
    if len(above) == 1:
        return nodes
    padding = (0, nodes.size - first * _ROW - sum(x.size for x in above))
    rows = jnp.pad(jnp.concatenate(above), padding, constant_values=neutral).reshape(-1, _ROW)
    return jax.lax.dynamic_update_slice(nodes, rows, (first, 0))


def find(
    nodes: Array, target: Array, rest: Array, sizes: Sequence[int], starts: Sequence[int]
) -> Array:
    """Return the first leaves `[B]` int32 whose cumulative sums exceed `target + rest` `[B]`.

    Cumulative sums over 64 nodes round differently from the cumulative sums over 8 nodes on CPU.
    """
    level = next(i for i in range(0, len(sizes), 2) if sizes[i] <= _TOP)
    children = part(nodes, starts[level], sizes[level])[:, None]  # [n, 1]
    pair = jnp.zeros(target.shape, jnp.int32)  # 128 descendants two levels below are one row
    while True:
        count = len(children) // 2 if level else len(children)
        chosen, start = _last_before(_sums(children, count), target)
        pair = pair * count + chosen
        if not level:
            return pair
        target, rest = numerics.floor(target - start, rest)
        level -= 2
        children = buffer.read(
            nodes, (starts[level] // _ROW + pair).astype(jnp.uint32)
        ).T  # [128, B]


def ancestors(
    nodes: Array, targets: Array, value: Array, valid: Array, join: Join, *, apart: bool
) -> list[Array]:
    """Return the new values, `[]` each, of a leaf and of its ancestors up to the root.

    Args:
      nodes: `[R, 128]` float32.
      targets: `[L]` uint32, index in `nodes` of the leaf and of its ancestors below the root.
      value: `[]`, new value of the leaf.
      valid: `[]` bool, whether to replace the leaf's value.
      join: reduction of children to their parent.
      apart: whether to read with 8 operations, which XLA on GPU fuses, instead of one operation.
    """
    # Siblings in the order in which `join` adds them: the other child of a pair, the other pair.
    flip, keep, number = _SIBLINGS.T[:, :, None]
    if apart:
        old, *siblings = [
            buffer.read_elements(nodes, ((targets ^ f) & k) + n) for f, k, n in _SIBLINGS
        ]
    else:
        old, *siblings = buffer.read_elements(nodes, ((targets ^ flip) & keep) + number)
    others = [siblings[0], join(siblings[1:3]), join(siblings[3:])]
    written = [jnp.where(valid, value, old[0])]
    for level in range(targets.size):
        new = written[-1]
        for other in others:
            new = join([new, other[level]])
        written.append(new)
    return written


def _parents(children: Array, join: Join) -> Array:
    """Reduce children `[..., 8 n]` to parents `[..., n]`."""
    if children.ndim == 1 and children.size % _ROW == 0:
        # A TPU adds rows much faster than columns.
        columns = children.reshape(-1, _ROW).T.reshape(_ROW // CHILDREN, CHILDREN, -1)
        return join([columns[:, i] for i in range(CHILDREN)]).T.ravel()
    families = children.reshape(*children.shape[:-1], -1, CHILDREN)
    return join([families[..., i] for i in range(CHILDREN)])


def _pick(values: Array, columns: Array) -> Array:
    """Return the elements `values[i, columns[i]]`, `[B]`, of non-negative `values` `[B, n]`."""
    number = np.arange(values.shape[1], dtype=np.uint32)
    return jnp.where(number[None] == columns[:, None], values, 0.0).max(axis=1)


def _sums(children: Array, count: int) -> Array:
    """Sum successive rows of `[n, B]`, so that `count` rows remain."""
    return children.reshape(count, -1, children.shape[1]).sum(axis=1)


def _last_before(values: Array, target: Array) -> tuple[Array, Array]:
    """Return, for each column, the last row that is positive and starts at or before `target`.

    Also return the starts of these rows, `[B]`. The start of a row of `values` `[n, B]` is the sum
    of the rows before it.
    """
    # A difference of sums would lose small values before a large one.
    start = jnp.pad(jax.lax.cumsum(values)[:-1], ((1, 0), (0, 0)))
    chosen = (values > 0) & (start <= target[None])
    number = np.arange(len(values), dtype=np.int32)[:, None]
    return jax.lax.reduce(
        (jnp.where(chosen, number, 0), jnp.where(chosen, start, 0.0)),
        (np.int32(0), np.float32(0)),
        lambda x, y: (jnp.maximum(x[0], y[0]), jnp.maximum(x[1], y[1])),
        (0,),
    )
