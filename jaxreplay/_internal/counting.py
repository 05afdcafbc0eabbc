"""Counting in sorted arrays, for small ones that are in a compiled loop."""

import math

import jax.numpy as jnp
import numpy as np

from jaxreplay._internal.dependence import computed_once
from jaxreplay.types import Array


def count_up_to(ends: Array, values: Array) -> Array:
    """Return how many of the rising `ends` `[n]` int32 are at most each value `[B]`: `[B]` int32.

    In two steps of about the root of n comparisons: the binary search of `jnp.searchsorted` is a
    loop of small steps or, unrolled, a chain of gathers. There is at least one end, and all values
    are below 2^31 - 1.
    """
    width = math.isqrt(len(ends))
    rows = jnp.pad(ends, (0, -len(ends) % width), constant_values=np.iinfo(np.int32).max)
    rows = rows.reshape(-1, width)
    row = (rows[:, -1] <= values[:, None]).sum(axis=1, dtype=jnp.int32)
    row = computed_once(jnp.minimum(row, len(rows) - 1))
    return row * width + (rows[row] <= values[:, None]).sum(axis=1, dtype=jnp.int32)
