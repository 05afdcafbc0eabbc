"""Gathers of short rows from arrays larger than the cache, faster on CPU than a plain gather.

A plain gather waits for memory at nearly every row. Replay cycles (a million slots, batches of 32
and 256, one core) take 1.2 to 2.6 times as long without the prefetching of rows. In training loops
of DQN and SAC, which are bound by their networks, prefetching gains less than 3 %.
"""

import jax
import jax.numpy as jnp

from jaxreplay._internal.platforms import by_platform
from jaxreplay._internal.tracing import varying
from jaxreplay._internal.tuned.once import once
from jaxreplay.types import Array

# These sizes were measured on a CPU with 1 MB of L2 and 32 MB of L3 cache, with JAX 0.10 and
# batches of 32 and 256 rows of 16 to 400 words.
_CACHE = 2**23  # array size in bytes above which prefetching rows is worthwhile
_NEAR = 2**18  # bytes of rows to prefetch at a time, which fit into the cache
_LONG = 256  # row size in bytes above which XLA copies rows with vector instructions
_LINE = 64  # bytes per cache line


def take_rows(array: Array, indices: Array) -> Array:
    """Return the rows `[B, ...]` of `array` `[n, ...]` at in-range int32 `indices` `[B]`."""
    rows = indices.astype(jnp.uint32)  # unsigned indices avoid the handling of negative indices
    return _take_far(array, rows) if rows.size and _far(array) else _take(array, rows)


def _take(array: Array, rows: Array) -> Array:
    return array.at[rows].get(mode="promise_in_bounds")


def _take_far_on_cpu(array: Array, rows: Array) -> Array:
    part = max(1, _NEAR // _in_lines(array))
    if rows.size > part:
        return _take_parts(array, rows, part)
    return _take(array, rows + _fetched(array, rows))


_take_far = by_platform(_take, cpu=_take_far_on_cpu)


def _far(array: Array) -> bool:
    """Return whether rows of an array are probably outside the cache and worth prefetching."""
    if array.ndim != 2 or array.size * array.dtype.itemsize <= _CACHE:
        return False
    return array.shape[1] * array.dtype.itemsize < _LONG


def _in_lines(array: Array) -> int:
    """Return the size of an array's row in bytes, rounded up to whole cache lines."""
    return -(-array.shape[1] * array.dtype.itemsize // _LINE) * _LINE


def _take_parts(array: Array, rows: Array, part: int) -> Array:
    """Return `array[rows]`, reading `part` rows at a time."""

    def turn(number: Array, taken: Array) -> Array:
        start = jnp.minimum(number * part, rows.size - part)  # the last two parts may overlap
        some = jax.lax.dynamic_slice_in_dim(rows, start, part)
        read = array.at[some + _fetched(array, some)].get(mode="promise_in_bounds")
        return jax.lax.dynamic_update_slice_in_dim(taken, read, start, 0)

    taken = varying(jnp.zeros((rows.size, array.shape[1]), array.dtype))
    return jax.lax.fori_loop(0, -(-rows.size // part), turn, taken)


def _fetched(array: Array, rows: Array) -> Array:
    """Return a uint32 zero that is available once rows `[B]` of `array` `[n, W]` are cached.

    A gather copies short rows word by word: the CPU requests few rows at the same time and waits
    for memory at nearly every row. Requests for one word of each cache line are fast, and memory
    serves them in parallel.
    """
    last, step = array.shape[1] - 1, max(1, _LINE // array.dtype.itemsize)
    columns = jnp.asarray([*range(0, last, step), last], jnp.uint32)
    words = array.at[rows[:, None], columns].get(mode="promise_in_bounds")
    bits = jax.lax.bitcast_convert_type(words.max().astype(jnp.float32), jnp.int32)
    return once((bits == 0x7FABCDEF).astype(jnp.int32)).astype(jnp.uint32)  # always 0
