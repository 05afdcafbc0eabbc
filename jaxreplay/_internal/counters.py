"""Counters of steps and updates that may outlast 32 bits.

At 40 us a step, 2^31 steps take a day. A 64-bit counter needs `jax_enable_x64`. Instead, a counter
that would overflow goes back by a multiple of everything that is counted modulo something, far
enough from 0 to stay past every warm-up. A total stays at the largest int32.
"""

import functools

import jax.numpy as jnp

from jaxreplay.types import Array

LAST = 2**31 - 1  # the largest int32


@functools.cache
def rewind(period: int) -> int:
    """Return how far a counter goes back if it is read modulo `period`, 1 to 2^30: about 2^29."""
    return max(1, 2**29 // period) * period


def increment(counter: Array, back: int = 1) -> Array:
    """Return `counter + 1`, int32 of any shape, or less by `back` where that overflows.

    Args:
      counter: int32, not negative.
      back: 1 keeps the counter at 2^31 - 1, for counters that schedules read; `rewind(m)` keeps the
        remainder of a counter that is read modulo m.
    """
    later = counter + 1
    return jnp.where(later < 0, later - back, later)


def saturating_add(count: Array, more: Array | int = 1) -> Array:
    """Return `min(count + more, 2^31 - 1)`, int32, of two numbers that are not negative."""
    return jnp.minimum(count, LAST - more) + more
