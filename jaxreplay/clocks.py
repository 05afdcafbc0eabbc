"""Numbers that only grow, for runs that outlast 32 bits.

At 40 us a step, 2^31 steps are a day. A 64-bit clock needs `jax_enable_x64`, so a clock goes back
instead, far enough from 0 to stay past every warm-up, and by whole rounds of all that is counted
modulo something. A total stays at the largest number.
"""

import functools

import jax.numpy as jnp

from jaxreplay.types import Array

LAST = 2**31 - 1  # the largest int32


@functools.cache
def lap(period: int) -> int:
    """Return how far a clock goes back that is read modulo a period, 1 to 2^30: 2^29 or so."""
    return max(1, 2**29 // period) * period


def tick(clock: Array, back: int = 1) -> Array:
    """Return a clock, int32 of any shape, after one more tick.

    After 2^31 - 1 it goes `back` by so many: 1 stays there, as a clock does that a schedule reads.
    A clock that is read modulo m goes back by a multiple of m.
    """
    later = clock + 1
    return jnp.where(later < 0, later - back, later)


def total(count: Array, more: Array | int = 1) -> Array:
    """Return `count + more`, int32 and neither negative, or 2^31 - 1 where that is beyond it."""
    return jnp.minimum(count, LAST - more) + more
