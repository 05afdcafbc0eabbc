"""Step and update counters that may exceed 32 bits.

At 40 us per step, 2^31 steps take a day, and 64-bit counters require `jax_enable_x64`. Therefore, a
counter that would overflow is rewound (reduced) by a multiple of every modulus applied to the
counter, and remains larger than the length of any warm-up. A total saturates at the largest int32.
"""

import functools

import jax.numpy as jnp

from jaxreplay.types import Array

LAST = 2**31 - 1  # the largest int32


@functools.cache
def rewind(period: int) -> int:
    """Return the amount by which to rewind a counter that is used modulo `period`.

    The amount is a multiple of `period` between 2^28 and 2^30. `period` must be in [1, 2^30].
    """
    return max(1, 2**29 // period) * period


def increment(counter: Array, back: int = 1) -> Array:
    """Return `counter + 1`, rewound by `back` on overflow.

    Args:
      counter: non-negative int32 of any shape.
      back: 1 keeps the counter at 2^31 - 1, for counters that schedules read; `rewind(m)` preserves
        the remainder of a counter that is used modulo m.
    """
    later = counter + 1
    return jnp.where(later < 0, later - back, later)


def saturating_add(count: Array, more: Array | int = 1) -> Array:
    """Return `min(count + more, 2^31 - 1)` for non-negative int32."""
    return jnp.minimum(count, LAST - more) + more
