"""Dependences that XLA can't see through, for `buffer`, which explains what they are good for."""

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from chex import ArrayTree

from jaxreplay.types import Array

Tree = TypeVar("Tree")


def at_least_two(rows: Array) -> Array:
    """Return what is to be scattered, a single row twice.

    XLA makes a scatter of one row an update of a slice, fuses it with the reads that follow, and
    then copies the whole array to keep the old one for them. A scatter of two rows stays one.
    """
    return jnp.repeat(rows, 2, axis=0) if rows.shape[0] == 1 else rows


def computed_once(values: Tree) -> Tree:
    """Return arrays of one shape, behind an operation that XLA does not compute in several places.

    On CPU, XLA computes a chain of cheap operations anew in every consumer, even for every element
    of one that a scalar is broadcast to. A reduction is none of the cheap ones: here of the bits
    and of zeros beside them, as it sees through a reduction of one. Arrays that come of one
    computation go through one reduction, or XLA would repeat it for each of them.

    Args:
      values: a pytree of arrays `[...]` of integers, booleans or floating-point numbers.

    Raises:
      ValueError: their shapes differ.
    """
    leaves, treedef = jax.tree.flatten(values)
    if not leaves:
        return values
    if len({leaf.shape for leaf in leaves}) > 1:
        raise ValueError(f"arrays of one shape go together, not {[x.shape for x in leaves]}")
    bits = [_bits(leaf) for leaf in leaves]
    zeros = [jnp.zeros((), leaf.dtype) for leaf in bits]
    once = jax.lax.reduce([_beside_zeros(leaf) for leaf in bits], zeros, _or, (0,))
    pairs = zip(once, leaves, strict=True)
    back = [jax.lax.bitcast_convert_type(x, leaf.dtype) for x, leaf in pairs]
    return jax.tree.unflatten(treedef, back)


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


def _or(x: Sequence[Array], y: Sequence[Array]) -> list[Array]:
    return list(map(jax.lax.bitwise_or, x, y))


def _beside_zeros(bits: Array) -> Array:
    """Return `[2, ...]`: what is given, and as many zeros."""
    # Not a comparison with an iota, which XLA would take out of a loop.
    first = np.array([True, False]).reshape(2, *[1] * bits.ndim)
    return jnp.where(first, bits, jnp.zeros_like(bits))


def _bits(values: Array) -> Array:
    """Return the bits of floating-point numbers, and other arrays as they are."""
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values
    unsigned = jnp.dtype(f"uint{8 * values.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(values, unsigned)
