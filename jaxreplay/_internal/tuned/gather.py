"""Reading rows of large arrays, for `buffer`, without the waits that a plain gather has on CPU.

It waits for memory at nearly every row; for threads, however little it reads; and under vmap it
takes twice as long. None of this changes what is read.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal.tracing import varying
from jaxreplay._internal.tuned.once import once
from jaxreplay.types import Array

# Measured on a CPU with 1 MB of second and 32 MB of third cache, jax 0.10, with batches of 32 and
# 256 rows of 16 to 400 words.
_CACHE = 2**23  # bytes of an array above which fetching its rows ahead pays
_NEAR = 2**18  # bytes of rows that are fetched at a time, and are still there when all are
_LONG = 256  # bytes of a row from which on XLA copies it by vector instructions
_LITTLE = 2**16  # bytes that are read before another thread has woken up
# Of XLA's pass that assigns parallel tasks: 256 KB for each of two threads, at least.
_CUT = 2**19  # bytes of an array from which on its reads are cut
_LINE = 64  # bytes that memory is read in


@jax.custom_batching.custom_vmap
def take_rows(array: Array, indices: Array) -> Array:
    """Return `array[indices]`: `[n, ...]` and `[B]` int32, in range -> `[B, ...]`.

    Under vmap on CPU, the rows of all arrays are read by one plain gather: XLA's batched one takes
    twice as long. Accelerators keep the batched one, which can also be split over devices. Few rows
    of a large array are read by one thread, if they are used in more than one way (`take_few_rows`
    tells why).
    """
    rows = indices.astype(jnp.uint32)  # unsigned, nothing has to be done about negative ones
    if _on_cpu() and rows.size and _far(array):
        part = max(1, _NEAR // _in_lines(array))
        if rows.size > part:
            return _take_parts(array, rows, part)
        rows = rows + _fetched(array, rows)
    read = array.at[rows].get(mode="promise_in_bounds")
    # Single numbers are better read by whatever uses them.
    return in_one_thread(read, indices) if array.ndim > 1 and array.nbytes >= _CUT else read


def _far(array: Array) -> bool:
    """Tell whether rows are in no cache, and worth bringing into one before they are copied."""
    if array.ndim != 2 or array.size * array.dtype.itemsize <= _CACHE:
        return False
    return array.shape[1] * array.dtype.itemsize < _LONG


def _in_lines(array: Array) -> int:
    """Return the bytes of the lines of a row `[n, W]`."""
    return -(-array.shape[1] * array.dtype.itemsize // _LINE) * _LINE


def _take_parts(array: Array, rows: Array, part: int) -> Array:
    """Return the rows, read so many at a time."""

    def turn(number: Array, taken: Array) -> Array:
        start = jnp.minimum(number * part, rows.size - part)  # the last two may overlap
        some = jax.lax.dynamic_slice_in_dim(rows, start, part)
        read = array.at[some + _fetched(array, some)].get(mode="promise_in_bounds")
        return jax.lax.dynamic_update_slice_in_dim(taken, read, start, 0)

    taken = varying(jnp.zeros((rows.size, array.shape[1]), array.dtype))
    return jax.lax.fori_loop(0, -(-rows.size // part), turn, taken)


def _fetched(array: Array, rows: Array) -> Array:
    """Return a uint32 0 that is known once rows `[B]` of `array` `[n, W]` are in the CPU's cache.

    A gather copies short rows word by word, so that the CPU sees few rows ahead and waits for
    memory at nearly every one. One word of each line is quickly asked for, and memory answers many
    at a time.
    """
    last, step = array.shape[1] - 1, max(1, _LINE // array.dtype.itemsize)
    columns = jnp.asarray([*range(0, last, step), last], jnp.uint32)
    words = array.at[rows[:, None], columns].get(mode="promise_in_bounds")
    bits = jax.lax.bitcast_convert_type(words.max().astype(jnp.float32), jnp.int32)
    return once((bits == 0x7FABCDEF).astype(jnp.int32)).astype(jnp.uint32)  # always 0


@take_rows.def_vmap
def _take_rows_batched(
    axis_size: int, in_batched: Sequence[bool], array: Array, indices: Array
) -> tuple[Array, bool]:
    flat = _flattened(axis_size, in_batched, array, indices)
    if flat is None:
        plain = jax.vmap(take_rows.fun, [0 if batched else None for batched in in_batched])
        return plain(array, indices), True
    rows = take_rows(*flat)
    return rows.reshape(axis_size, indices.shape[-1], *rows.shape[1:]), True


def scratch_for(array: Array, count: int) -> Array:
    """Return the scratch that `take_few_rows` needs for so many rows of an array."""
    return jnp.zeros((count + 1, *array.shape[1:]), array.dtype)


@jax.custom_batching.custom_vmap
def take_few_rows(scratch: Array, array: Array, indices: Array) -> tuple[Array, Array]:
    """Return `take_rows(array, indices)`, and the scratch: a walk hands it on, others make it anew.

    XLA on CPU cuts what reads an array of half a megabyte in parts for several threads (in the HLO,
    `outer_dimension_partitions`), however little it reads; waking them takes longer. It does not
    cut an operation that ends in an update of a slice. So the rows are written over the beginning
    of the scratch; that this is all of it but one row, and that the beginning is 0, XLA can't tell,
    or it would drop the update. Use the rows in more than one way: XLA makes the update a part of
    a single use, and then cuts that.
    """
    rows = indices.astype(jnp.uint32)
    read = array.at[rows].get(mode="promise_in_bounds")
    if not _on_cpu() or array.nbytes < _CUT or not 0 < read.nbytes <= _LITTLE:
        return read, scratch
    start = (rows[0] >> 31).astype(jnp.int32)  # 0: no array has 2^31 rows
    scratch = jax.lax.dynamic_update_slice_in_dim(scratch, read, start, 0)
    return scratch[: rows.size], scratch


@take_few_rows.def_vmap
def _take_few_rows_batched(
    axis_size: int, in_batched: Sequence[bool], scratch: Array, array: Array, indices: Array
) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
    flat = _flattened(axis_size, in_batched[1:], array, indices)
    if flat is None:
        plain = jax.vmap(take_few_rows.fun, [0 if batched else None for batched in in_batched])
        return plain(scratch, array, indices), (True, True)
    if not in_batched[0]:
        scratch = jnp.broadcast_to(scratch, (axis_size, *scratch.shape))
    rows, together = take_few_rows(scratch.reshape(-1, *scratch.shape[2:]), *flat)
    rows = rows.reshape(axis_size, indices.shape[-1], *rows.shape[1:])
    return (rows, together.reshape(scratch.shape)), (True, True)


@jax.custom_batching.custom_vmap
def in_one_thread(values: Array, numbers: Array) -> Array:
    """Return values `[n, ...]` that no other thread is woken up for, as `take_few_rows` explains.

    `numbers` `[B]` are int32 and not negative, which XLA can't tell. Use the result in more than
    one way.
    """
    if not _on_cpu() or not 0 < values.nbytes <= _LITTLE:
        return values
    scratch = jnp.zeros((values.shape[0] + 1, *values.shape[1:]), values.dtype)
    start = jnp.maximum(numbers[0] >> 31, 0)  # 0, whatever the number
    return jax.lax.dynamic_update_slice_in_dim(scratch, values, start, 0)[: values.shape[0]]


@in_one_thread.def_vmap
def _in_one_thread_batched(
    axis_size: int, in_batched: Sequence[bool], values: Array, numbers: Array
) -> tuple[Array, bool]:
    values_batched, numbers_batched = in_batched
    if not values_batched:
        values = jnp.broadcast_to(values, (axis_size, *values.shape))
    if numbers_batched:
        numbers = numbers[0]
    flat = in_one_thread(values.reshape(-1, *values.shape[2:]), numbers)
    return flat.reshape(values.shape), True


def _flattened(
    axis_size: int, in_batched: Sequence[bool], array: Array, indices: Array
) -> tuple[Array, Array] | None:
    """Return arrays of all seeds as one, and the indices in it; None: leave them apart."""
    array_batched, indices_batched = in_batched
    length = array.shape[1] if array_batched else 0
    if not _on_cpu() or axis_size * length > np.iinfo(np.int32).max:
        return None
    if not indices_batched:
        indices = jnp.broadcast_to(indices, (axis_size, *indices.shape))
    if array_batched:
        indices = indices + jnp.arange(axis_size, dtype=indices.dtype)[:, None] * length
        array = array.reshape(axis_size * length, *array.shape[2:])
    return array, indices.ravel()


def _on_cpu() -> bool:
    """Tell whether the backend in use is a CPU's."""
    return jax.default_backend() == "cpu"
