"""What keeps XLA from copying large arrays, computing numbers many times, and waiting for memory.

Nothing here changes a result: a zero that the compiler can't see through, scatters that it can't
fuse, rows fetched ahead of their use, and one gather in place of a batched one.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay.types import Array

# Measured on a CPU with 1 MB of second and 32 MB of third cache, jax 0.10, with batches of 32 and
# 256 rows of 16 to 400 words.
_CACHE = 2**23  # bytes of an array above which fetching its rows ahead pays
_NEAR = 2**20  # bytes of rows that are still there when all have been fetched
_LONG = 256  # bytes of a row from which on XLA copies it by vector instructions
_LITTLE = 2**16  # bytes that are read before another thread has woken up
# Of XLA's pass that assigns parallel tasks: 256 KB for each of two threads, at least.
_CUT = 2**19  # bytes of an array from which on its reads are cut
_LINE = 64  # bytes that memory is read in


def at_least_two(rows: Array) -> Array:
    """Return what is to be scattered, a single row twice.

    XLA makes a scatter of one row an update-slice, fuses it with the reads that follow, and then
    copies the whole array to keep the old one for them. A scatter of two rows stays one.
    """
    return jnp.repeat(rows, 2, axis=0) if rows.shape[0] == 1 else rows


def computed_once(values: Array) -> Array:
    """Return an array, behind an operation that XLA does not fuse into its consumers.

    On CPU, XLA computes a chain of cheap operations anew in every consumer, even for every element
    of one that a scalar is broadcast to.
    """
    flat = at_least_two(jnp.ravel(values))
    places = jnp.arange(flat.size)
    written = jnp.zeros_like(flat).at[places].set(flat, mode="promise_in_bounds")
    return written[: values.size].reshape(values.shape)


def opaque_zero(tree: Any) -> Array:
    """Return an int32 0 that depends on every array of a pytree.

    What is made to depend on it waits until the arrays are there: XLA drops optimisation barriers
    on CPU before it decides on copies, but it can't tell that this is zero.
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
    if not leaves:
        return jnp.zeros((), jnp.int32)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    leaves = [jax.random.key_data(x) if k else x for x, k in zip(leaves, keys, strict=True)]
    firsts = [leaf.ravel()[0].astype(jnp.float32) for leaf in leaves]
    bits = jax.lax.bitcast_convert_type(sum(firsts), jnp.int32)
    return computed_once((bits == 0x7FABCDEF).astype(jnp.int32))  # a NaN that no arithmetic makes


@jax.custom_batching.custom_vmap
def take_rows(array: Array, indices: Array) -> Array:
    """Return `array[indices]`: `[n, ...]` and `[B]` int32, in range -> `[B, ...]`.

    Under vmap on CPU, the rows of all arrays are read by one plain gather: XLA's batched one takes
    twice as long. Accelerators keep the batched one, which can also be split over devices.
    """
    rows = indices.astype(jnp.uint32)  # unsigned, nothing has to be done about negative ones
    if on_cpu() and _far(array, rows.size):
        rows = rows + _fetched(array, rows)
    return array.at[rows].get(mode="promise_in_bounds")


def _far(array: Array, count: int) -> bool:
    """Tell whether so many rows are in no cache, and worth bringing into one, which holds them."""
    if array.ndim != 2 or array.size * array.dtype.itemsize <= _CACHE:
        return False
    row = array.shape[1] * array.dtype.itemsize
    return row < _LONG and 0 < count * -(-row // _LINE) * _LINE <= _NEAR


def _fetched(array: Array, rows: Array) -> Array:
    """Return a uint32 0 that is known once rows `[B]` of `array` `[n, W]` are in the CPU's cache.

    A gather copies short rows word by word, so that the CPU sees few rows ahead and waits for
    memory at nearly every one. One word of each line is quickly asked for, and memory answers many
    at a time.
    """
    last, step = array.shape[1] - 1, max(1, _LINE // array.dtype.itemsize)
    columns = jnp.asarray([*range(0, last, step), last], jnp.uint32)
    words = array.at[rows[:, None], columns].get(mode="promise_in_bounds")
    return opaque_zero(words.max()).astype(jnp.uint32)


@take_rows.def_vmap
def _take_rows_batched(
    axis_size: int, in_batched: Sequence[bool], array: Array, indices: Array
) -> tuple[Array, bool]:
    flat = _flattened(axis_size, in_batched, array, indices)
    if flat is None:
        plain = jax.vmap(take_rows.fun, [0 if batched else None for batched in in_batched])
        return plain(array, indices), True
    rows = take_rows(*flat)
    return rows.reshape(axis_size, -1, *rows.shape[1:]), True


def room_for(array: Array, count: int) -> Array:
    """Return the room that `take_few_rows` needs for so many rows of an array."""
    return jnp.zeros((count + 1, *array.shape[1:]), array.dtype)


@jax.custom_batching.custom_vmap
def take_few_rows(room: Array, array: Array, indices: Array) -> tuple[Array, Array]:
    """Return `take_rows(array, indices)`, and the room: a loop carries it, others make it anew.

    XLA on CPU cuts what reads an array of half a megabyte in parts for several threads (in the HLO,
    `outer_dimension_partitions`), however little it reads; waking them takes longer. It does not
    cut an operation that ends in an update of a slice. So the rows are written over the beginning
    of the room; that this is all of it but one row, and that the beginning is 0, XLA can't tell,
    or it would drop the update. Use the rows in more than one way: XLA makes the update a part of
    a single use, and is back where it was.
    """
    rows = indices.astype(jnp.uint32)
    read = array.at[rows].get(mode="promise_in_bounds")
    if not on_cpu() or array.nbytes < _CUT or not 0 < read.nbytes <= _LITTLE:
        return read, room
    start = (rows[0] >> 31).astype(jnp.int32)  # 0: no array has 2^31 rows
    room = jax.lax.dynamic_update_slice_in_dim(room, read, start, 0)
    return room[: rows.size], room


@take_few_rows.def_vmap
def _take_few_rows_batched(
    axis_size: int, in_batched: Sequence[bool], room: Array, array: Array, indices: Array
) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
    flat = _flattened(axis_size, in_batched[1:], array, indices)
    if flat is None:
        plain = jax.vmap(take_few_rows.fun, [0 if batched else None for batched in in_batched])
        return plain(room, array, indices), (True, True)
    if not in_batched[0]:
        room = jnp.broadcast_to(room, (axis_size, *room.shape))
    rows, together = take_few_rows(room.reshape(-1, *room.shape[2:]), *flat)
    return (rows.reshape(axis_size, -1, *rows.shape[1:]), together.reshape(room.shape)), (True,) * 2


def _flattened(
    axis_size: int, in_batched: Sequence[bool], array: Array, indices: Array
) -> tuple[Array, Array] | None:
    """Return arrays of all seeds as one, and the indices in it; None: better not."""
    array_batched, indices_batched = in_batched
    length = array.shape[1] if array_batched else 0
    if not on_cpu() or axis_size * length > np.iinfo(np.int32).max:
        return None
    if not indices_batched:
        indices = jnp.broadcast_to(indices, (axis_size, *indices.shape))
    if array_batched:
        indices = indices + jnp.arange(axis_size, dtype=indices.dtype)[:, None] * length
        array = array.reshape(-1, *array.shape[2:])
    return array, indices.ravel()


def on_cpu() -> bool:
    """Tell whether the backend in use is a CPU's."""
    return jax.default_backend() == "cpu"
