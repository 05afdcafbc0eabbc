"""Random bits, and integers below a bound that is known only at run time."""

import jax
import jax.numpy as jnp

from jaxreplay.keys import unrolled
from jaxreplay.types import Array


def bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw random bits: uint32 of this shape, the very ones of `jax.random.bits`.

    On CPU, 256 numbers take 0.5 us instead of 4, and 4096 take 5 instead of 37: see `unrolled`.

    Raises:
      ValueError or TypeError: `key` is not a single key.
    """
    return jax.random.bits(unrolled(key), shape, jnp.uint32)


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
    return scaled(bits(key, shape), jnp.asarray(below).astype(jnp.uint32)).astype(jnp.int32)


def scaled(x: Array, y: Array) -> Array:
    """Return `x * y / 2^32` of two uint32, rounded down: random bits `x` become a number below `y`.

    Without 64-bit integers, and without the division that `x % y` takes.
    """
    x_high, x_low, y_high, y_low = x >> 16, x & 0xFFFF, y >> 16, y & 0xFFFF
    middle = x_high * y_low + (x_low * y_low >> 16)
    rest = x_low * y_high + (middle & 0xFFFF)
    return x_high * y_high + (middle >> 16) + (rest >> 16)
