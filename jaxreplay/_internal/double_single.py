"""Numbers as the sum of two float32, where one would round too much."""

import jax
import jax.numpy as jnp

from jaxreplay.types import Array


def fraction(bits: Array, whole: Array) -> tuple[Array, Array]:
    """Return `bits / 2^32 * whole` as a float32 and what of it float32 rounds away.

    float32 alone resolves 2^-24 of the whole: with priorities many orders of magnitude apart, some
    of the small ones would never be drawn. Factors of 12 bits make every product here exact.

    Args:
      bits: `[...]` uint32.
      whole: `[]` float32, not negative.
    """
    first = (bits >> 20).astype(jnp.float32) * 2.0**-12
    second = ((bits >> 8) & 0xFFF).astype(jnp.float32) * 2.0**-24
    third = (bits & 0xFF).astype(jnp.float32) * 2.0**-32
    mask = jnp.uint32(0xFFFFF000)
    head = jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(whole, jnp.uint32) & mask, jnp.float32
    )
    tail = whole - head
    target = (first + second) * whole
    rounded = ((first * head - target) + first * tail + second * head) + second * tail
    return floor(target, rounded + third * whole)


def floor(value: Array, rest: Array) -> tuple[Array, Array]:
    """Return the largest float32 up to `value + rest`, and what is left, which is not negative.

    `rest` is small beside `value`, which is not negative. Rounding down matters where ranges are
    looked for: what is rounded up to where one begins would fall into it.
    """
    near = value + rest
    left = rest - (near - value)
    above = (left < 0) & (near > 0)
    bits = jax.lax.bitcast_convert_type(near, jnp.int32) - above.astype(jnp.int32)
    below = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return below, left + (near - below)
