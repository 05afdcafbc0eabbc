"""Values that XLA computes once, although several operations use them."""

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay.types import Array

Tree = TypeVar("Tree")


def once(values: Tree) -> Tree:
    """Return arrays of one shape, behind an operation that XLA does not duplicate.

    XLA on CPU recomputes a chain of cheap operations in every consumer, even for every element of
    an array that a scalar is broadcast to. It does not duplicate a reduction: here of the bits and
    of zeros, as XLA simplifies a reduction of one element. Arrays that are results of one
    computation share one reduction, or XLA would repeat the computation for each of them.

    Args:
      values: a pytree of arrays `[...]` of integers, booleans or floating-point numbers.

    Raises:
      ValueError: shapes differ.
    """
    leaves, treedef = jax.tree.flatten(values)
    if not leaves:
        return values
    if len({leaf.shape for leaf in leaves}) > 1:
        raise ValueError(f"values have different shapes: {[x.shape for x in leaves]}")
    bits = [_bits(leaf) for leaf in leaves]
    zeros = [jnp.zeros((), leaf.dtype) for leaf in bits]
    once = jax.lax.reduce([_with_zeros(leaf) for leaf in bits], zeros, _or, (0,))
    pairs = zip(once, leaves, strict=True)
    back = [jax.lax.bitcast_convert_type(x, leaf.dtype) for x, leaf in pairs]
    return jax.tree.unflatten(treedef, back)


def _or(x: Sequence[Array], y: Sequence[Array]) -> list[Array]:
    return list(map(jax.lax.bitwise_or, x, y))


def _with_zeros(bits: Array) -> Array:
    """Return `[2, ...]`: the argument, and zeros."""
    # Not a comparison with an iota, which XLA would move out of a loop.
    first = np.array([True, False]).reshape(2, *[1] * bits.ndim)
    return jnp.where(first, bits, jnp.zeros_like(bits))


def _bits(values: Array) -> Array:
    """Return the bits of floating-point numbers, and other arrays as they are."""
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values
    unsigned = jnp.dtype(f"uint{8 * values.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(values, unsigned)
