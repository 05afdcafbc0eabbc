"""Random integers below a bound that is known only at run time."""

import jax
import jax.numpy as jnp

from jaxreplay.types import Array


def integers(key: Array, shape: tuple[int, ...], below: Array | int) -> Array:
    """Draw independent integers from 0 to `below` - 1, all equally likely: int32 of this shape.

    Fixed-point multiplication of 32 random bits (Lemire 2019, arXiv:1805.10941, without its
    rejection): probabilities differ from `1 / below` by at most a share of `below / 2^32`. One hash
    per number, where `jax.random.randint` takes two and a division.

    Args:
      key: PRNG key.
      shape: of the result.
      below: `[]`, positive int32.
    """
    bits = jax.random.bits(key, shape, jnp.uint32)
    return scaled(bits, jnp.asarray(below).astype(jnp.uint32)).astype(jnp.int32)


def scaled(x: Array, y: Array) -> Array:
    """Return `x * y / 2^32` of two uint32, rounded down: random bits `x` become a number below `y`.

    Without 64-bit integers, and without the division that `x % y` takes.
    """
    x_high, x_low, y_high, y_low = x >> 16, x & 0xFFFF, y >> 16, y & 0xFFFF
    middle = x_high * y_low + (x_low * y_low >> 16)
    rest = x_low * y_high + (middle & 0xFFFF)
    return x_high * y_high + (middle >> 16) + (rest >> 16)
