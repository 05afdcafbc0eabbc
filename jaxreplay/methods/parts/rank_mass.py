"""Closed-form sums of rank^-alpha, quantiles of ranks, and segments of equal probability.

Rank-based replay samples in proportion to rank^-alpha (Schaul et al. 2016, Sec. 3.3). The exponent
changes during a run, so prefix sums cannot be precomputed. The first 16 terms are summed directly.
The sum of the remaining terms is approximated by the midpoint rule (an integral from half a rank
before the first term to half a rank after the last) with the first Euler-Maclaurin correction.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import buffer
from jaxreplay.types import Array

_HEAD = 16  # number of initial terms that are summed directly


class Segments(NamedTuple):
    """B non-empty segments of ranks 1..N; segment j contains ranks `start[j] + 1 .. end[j]`."""

    start: Array  # [B] int32
    end: Array  # [B] int32


def mass(first: Array | int, last: Array, alpha: Array | float) -> Array:
    """Return the sum of n^-alpha over `first < n <= last`, `[...]` float32.

    This is the sum over zero-based ranks `first` to `last - 1`, with `0 <= first <= last` `[...]`
    int32 and an exponent alpha `[]` of at least 0. The relative error is about 1e-6.
    """
    exponent = jnp.asarray(alpha, jnp.float32)
    total = jnp.zeros(jnp.broadcast_shapes(jnp.shape(first), jnp.shape(last)), jnp.float32)
    for n in range(1, _HEAD + 1):
        total = total + jnp.where((first < n) & (n <= last), n**-exponent, 0.0)
    low, high = jnp.maximum(first, _HEAD), jnp.maximum(last, _HEAD)
    start = low.astype(jnp.float32) + 0.5
    ratio = jnp.log1p((high - low).astype(jnp.float32) / start)  # log of end / start
    power = jnp.exp(-exponent * jnp.log(start))
    integral = start * power * ratio * _ratio_expm1((1.0 - exponent) * ratio)
    correction = exponent / 24 * power / start * -jnp.expm1(-(exponent + 1.0) * ratio)
    return total + integral - correction


def quantile(share: Array, size: Array, alpha: Array | float) -> Array:
    """Return the smallest n with `mass(0, n) >= share * mass(0, size)`, `[...]` int32.

    `share` `[...]` float32 in [0, 1] is a fraction of the total mass of `size` ranks (at least 1).
    Float32 rounding limits the resolution of the last ranks: with a million ranks, the error in n
    is up to 10 at alpha 0.7, 35 at 1, 200 at 1.2 and 6,000 at 1.5.
    """
    exponent = jnp.asarray(alpha, jnp.float32)
    target = share * buffer.once(mass(0, size, exponent)) * (1.0 - 2e-6)
    head, rank = jnp.zeros((), jnp.float32), jnp.ones(jnp.shape(share), jnp.int32)
    for n in range(1, _HEAD + 1):
        head = head + n**-exponent
        rank = rank + (head < target)
    start = _HEAD + 0.5
    power = start**-exponent
    # The integral of rank^-alpha from `start`, in units of start * power.
    integral = (target - head + exponent / 24 * power / start) / (start * power)
    slope = 1.0 - exponent
    inside = jnp.maximum(slope * jnp.maximum(integral, 0.0), -1.0 + 1e-7)
    end = start * jnp.exp(jnp.maximum(integral, 0.0) * _ratio_log1p(inside))
    end = end - exponent / (24 * end)  # Euler-Maclaurin correction at the upper limit
    beyond = jnp.ceil(end - 0.5 - (1e-3 + 1e-6 * end))
    beyond = jnp.clip(beyond, _HEAD + 1, 2.0**30).astype(jnp.int32)
    return buffer.once(jnp.minimum(jnp.where(rank > _HEAD, beyond, rank), size))


def segments(size: Array, count: int, alpha: Array | float) -> Segments:
    """Return a partition of the ranks 1..size into `count` segments of nearly equal probability.

    Segment j ends at the `(j + 1) / count` quantile, shifted if a segment would be empty. `size`
    `[]` int32 must be at least `count`.
    """
    number = jnp.arange(1, count + 1)
    return segments_from_ends(quantile(number / count, size, alpha), size)


def segments_from_ends(end: Array, size: Array) -> Segments:
    """Return segments of ranks 1..size with ends `end` `[B]`, shifted so that none is empty."""
    count = len(end)
    number = jnp.arange(1, count + 1, dtype=jnp.int32)
    end = jax.lax.cummax(end.at[-1].set(size) - number) + number  # strictly increasing
    end = jnp.minimum(end, size - (count - number))
    start = jax.lax.pad(end, jnp.int32(0), [(1, -1, 0)])  # the end of the previous segment
    return Segments(start, end)


def share_of_segments(segments: Segments, first: Array, last: Array) -> Array:
    """Return the expected number of draws per batch of ranks `first` to `last - 1`, `[n]` float32.

    Ranks `[n]` are zero-based. A batch contains one rank drawn uniformly from each segment.
    """
    start, end = segments
    rank = jnp.stack([first, last])
    segment = jnp.minimum(count_up_to(end, rank.ravel()), len(end) - 1).reshape(rank.shape)
    part = (rank - start[segment]) / (end - start)[segment]
    return (segment[1] - segment[0]) + (part[1] - part[0])


def _ratio_expm1(x: Array) -> Array:
    """Return (e^x - 1) / x, with the limit 1 at 0."""
    small = jnp.abs(x) < 1e-4
    return jnp.where(small, 1.0 + x / 2, jnp.expm1(x) / jnp.where(small, 1.0, x))


def _ratio_log1p(x: Array) -> Array:
    """Return log(1 + x) / x, with the limit 1 at 0."""
    small = jnp.abs(x) < 1e-4
    return jnp.where(small, 1.0 - x / 2, jnp.log1p(x) / jnp.where(small, 1.0, x))


def count_up_to(ends: Array, values: Array) -> Array:
    """Return `jnp.searchsorted(ends, values, side="right")`, `[B]` int32.

    The search takes two steps of about sqrt(n) comparisons, whereas `jnp.searchsorted` is a loop of
    small steps or, when unrolled, a chain of gathers.

    Args:
      ends: `[n]` int32, ascending, with n at least 1.
      values: `[B]` int32, below 2^31 - 1.
    """
    width = math.isqrt(len(ends))
    rows = jnp.pad(ends, (0, -len(ends) % width), constant_values=np.iinfo(np.int32).max)
    rows = rows.reshape(-1, width)
    row = (rows[:, -1] <= values[:, None]).sum(axis=1, dtype=jnp.int32)
    row = buffer.once(jnp.minimum(row, len(rows) - 1))
    return row * width + (rows[row] <= values[:, None]).sum(axis=1, dtype=jnp.int32)
