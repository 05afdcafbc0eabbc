"""Draws from two sum trees, as if their leaves were in one tree."""

import jax.numpy as jnp

from jaxreplay import numerics, sum_tree
from jaxreplay.sum_tree import SumTree
from jaxreplay.types import Array


def find(
    first: SumTree, second: SumTree, shares: Array, total: Array, scale: Array
) -> tuple[Array, Array, Array]:
    """Return leaf indices at positions `shares` `[B]` uint32, in units of `total / 2^32`.

    A position below the sum of the leaves of `first` selects a leaf of `first`. For any other
    position, the excess over this sum, times `scale`, is a position in `second`.

    Args:
      first: a tree of sums.
      second: a tree of sums.
      shares: `[B]` uint32, from `sum_tree.shares`.
      total: `[]` float32, at least the sum of the leaves of `first`.
      scale: `[]` float32, sum of the leaves of `second` per unit of `total`.

    Returns:
      Indices `[B]` int32 in `first`, indices `[B]` int32 in `second`, and a mask `[B]`: True where
      the position selects the leaf of `first`, False where it selects the leaf of `second`.
    """
    target, rest = numerics.fraction(shares, total)
    edge = sum_tree.total(first)
    inside = (target < edge) | ~(sum_tree.total(second) > 0)
    near = sum_tree.find(first, jnp.where(inside, target, 0.0), jnp.where(inside, rest, 0.0))
    beyond = target - edge
    rest = (target - beyond) - edge + rest  # the first difference is exact
    beyond, rest = numerics.floor(jnp.maximum(beyond, 0.0) * scale, rest * scale)
    outside = ~inside & (beyond > 0)
    far = sum_tree.find(second, jnp.where(outside, beyond, 0.0), jnp.where(outside, rest, 0.0))
    return near, far, inside
