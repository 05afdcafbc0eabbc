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

_CACHE = 2**23  # bytes, about: rows of larger arrays are in no fast cache
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
    if jax.default_backend() == "cpu" and array.ndim == 2 and array.nbytes > _CACHE:
        rows = rows + _fetched(array, rows)
    return array.at[rows].get(mode="promise_in_bounds")


def _fetched(array: Array, rows: Array) -> Array:
    """Return a uint32 0 that is known once rows `[B]` of `array` `[n, W]` are in the CPU's cache.

    A gather copies word by word, so that the CPU sees few rows ahead and waits for memory at nearly
    every one. One word of each line is quickly asked for, and memory answers many at a time.
    """
    step = max(1, _LINE // array.dtype.itemsize)
    columns = jnp.asarray(sorted({*range(0, array.shape[1], step), array.shape[1] - 1}), jnp.uint32)
    words = array.at[rows[:, None], columns].get(mode="promise_in_bounds")
    return opaque_zero(words.max()).astype(jnp.uint32)


@take_rows.def_vmap
def _take_rows_batched(
    axis_size: int, in_batched: Sequence[bool], array: Array, indices: Array
) -> tuple[Array, bool]:
    array_batched, indices_batched = in_batched
    if not array_batched:
        rows = take_rows(array, indices.ravel())
        return rows.reshape(*indices.shape, *array.shape[1:]), True
    length = array.shape[1]
    if jax.default_backend() != "cpu" or axis_size * length > np.iinfo(np.int32).max:
        plain = jax.vmap(take_rows.fun, in_axes=(0, 0 if indices_batched else None))
        return plain(array, indices), True
    offsets = jnp.arange(axis_size, dtype=indices.dtype)[:, None] * length
    rows = take_rows(array.reshape(-1, *array.shape[2:]), (indices + offsets).ravel())
    return rows.reshape(axis_size, -1, *array.shape[2:]), True
