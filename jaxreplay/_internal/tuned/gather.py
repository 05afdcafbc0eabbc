"""Reads of large arrays that are faster than a plain gather on CPU, with the same result.

A plain gather waits for memory at nearly every row and for other threads even if it reads little,
and takes twice as long under vmap.
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
_CACHE = 2**23  # bytes of an array above which prefetching its rows is worthwhile
_NEAR = 2**18  # bytes of rows that are prefetched at a time, and fit into the cache
_LONG = 256  # bytes of a row above which XLA copies it by vector instructions
_LITTLE = 2**16  # bytes that are read faster than another thread wakes up
# Of XLA's pass that assigns parallel tasks: 256 KB for each of two threads, at least.
_CUT = 2**19  # bytes of an array above which XLA splits its reads
_LINE = 64  # bytes of a cache line


@jax.custom_batching.custom_vmap
def take_rows(array: Array, indices: Array) -> Array:
    """Return `array[indices]`: `[n, ...]` and `[B]` int32, in range -> `[B, ...]`.

    Under vmap on CPU, one plain gather reads the rows of all arrays: XLA's batched gather takes
    twice as long. Accelerators keep the batched one, which can also be partitioned. Few rows of a
    large array are read by one thread, if they are used in more than one way (see `take_few_rows`).
    """
    rows = indices.astype(jnp.uint32)  # unsigned, nothing has to be done about negative ones
    if _on_cpu() and rows.size and _far(array):
        part = max(1, _NEAR // _in_lines(array))
        if rows.size > part:
            return _take_parts(array, rows, part)
        rows = rows + _fetched(array, rows)
    read = array.at[rows].get(mode="promise_in_bounds")
    # Scalars are read by their consumers.
    return in_one_thread(read, indices) if array.ndim > 1 and array.nbytes >= _CUT else read


def _far(array: Array) -> bool:
    """Return whether rows are probably not in a cache, and worth prefetching."""
    if array.ndim != 2 or array.size * array.dtype.itemsize <= _CACHE:
        return False
    return array.shape[1] * array.dtype.itemsize < _LONG


def _in_lines(array: Array) -> int:
    """Return the bytes of a row in whole cache lines."""
    return -(-array.shape[1] * array.dtype.itemsize // _LINE) * _LINE


def _take_parts(array: Array, rows: Array, part: int) -> Array:
    """Return the rows, `part` of them at a time."""

    def turn(number: Array, taken: Array) -> Array:
        start = jnp.minimum(number * part, rows.size - part)  # the last two may overlap
        some = jax.lax.dynamic_slice_in_dim(rows, start, part)
        read = array.at[some + _fetched(array, some)].get(mode="promise_in_bounds")
        return jax.lax.dynamic_update_slice_in_dim(taken, read, start, 0)

    taken = varying(jnp.zeros((rows.size, array.shape[1]), array.dtype))
    return jax.lax.fori_loop(0, -(-rows.size // part), turn, taken)


def _fetched(array: Array, rows: Array) -> Array:
    """Return a uint32 0 that is available once rows `[B]` of `array` `[n, W]` are in the cache.

    A gather copies short rows word by word: the CPU has few rows in flight and waits for memory at
    nearly every one. Requests for one word of every line are fast, and served in parallel.
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
    """Return the scratch of `take_few_rows` for `count` rows of an array."""
    return jnp.zeros((count + 1, *array.shape[1:]), array.dtype)


@jax.custom_batching.custom_vmap
def take_few_rows(scratch: Array, array: Array, indices: Array) -> tuple[Array, Array]:
    """Return `take_rows(array, indices)` and the scratch, which a walk passes on.

    XLA on CPU partitions operations that read an array of half a megabyte for several threads
    (`outer_dimension_partitions` in the HLO), even if they read little and waking the threads takes
    longer. It does not partition an operation that ends in an update of a slice. Therefore the rows
    are written to the beginning of the scratch, which has one more row, at an index that is 0 in a
    way that XLA can't prove; otherwise it would remove the update. Use the rows in more than one
    way: XLA fuses the update with a single use, and partitions the fusion.
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
    """Return values `[n, ...]` that are computed by one thread (see `take_few_rows`).

    `numbers` `[B]` are int32 and not negative, which XLA can't prove. Use the result in more than
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
    """Return the arrays of all programs as one, and indices into it; None to keep them separate."""
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
    """Return whether the default backend is the CPU."""
    return jax.default_backend() == "cpu"
