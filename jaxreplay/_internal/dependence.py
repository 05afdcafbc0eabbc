"""Dependences that XLA can't see through, for `buffer`, which explains what they are good for."""

import jax
import jax.numpy as jnp
from chex import ArrayTree

from jaxreplay.types import Array


def at_least_two(rows: Array) -> Array:
    """Return what is to be scattered, a single row twice.

    XLA makes a scatter of one row an update of a slice, fuses it with the reads that follow, and
    then copies the whole array to keep the old one for them. A scatter of two rows stays one.
    """
    return jnp.repeat(rows, 2, axis=0) if rows.shape[0] == 1 else rows


def computed_once(values: Array) -> Array:
    """Return an array, behind an operation that XLA does not compute in several places.

    On CPU, XLA computes a chain of cheap operations anew in every consumer, even for every element
    of one that a scalar is broadcast to. A reduction is none of the cheap ones: here of the bits
    and of zeros beside them, as it sees through a reduction of one.
    """
    bits = _bits(values)
    which = jax.lax.broadcasted_iota(jnp.int32, (2, *bits.shape), 0)
    beside = jnp.where(which == 0, bits, jnp.zeros_like(bits))
    zero = jnp.zeros((), bits.dtype)
    once = jax.lax.reduce(beside, zero, jax.lax.bitwise_or, (0,))
    return jax.lax.bitcast_convert_type(once, values.dtype)


def opaque_zero(tree: ArrayTree) -> Array:
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


def _bits(values: Array) -> Array:
    """Return the bits of floating-point numbers, and other arrays as they are."""
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values
    unsigned = jnp.dtype(f"uint{8 * values.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(values, unsigned)
