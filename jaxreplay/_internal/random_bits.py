"""Random bits, and integers below a bound that is known only at run time."""

import functools
import math

import jax
import jax.numpy as jnp

from jaxreplay.types import Array

# By round of threefry2x32 (Salmon et al. 2011, table 2), and the constant of its key schedule.
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw random bits: uint32 of this shape, the very ones of `jax.random.bits`.

    On CPU, jax hashes in a loop of small operations; without the loop, XLA makes one operation of
    it: 256 numbers took 0.5 us instead of 4, 4096 took 5 instead of 37.

    Raises:
      ValueError or TypeError: `key` is not a single key.
    """
    if not _is_threefry_on_cpu(key):
        return jax.random.bits(key, shape, jnp.uint32)
    return _threefry(*jax.random.key_data(key), math.prod(shape)).reshape(shape)


@functools.partial(jax.jit, static_argnums=2, inline=True)  # traced once for each count
def _threefry(first: Array, second: Array, count: int) -> Array:
    """Return threefry2x32 of the numbers up to `count`, under a key of two words."""
    schedule = (first, second, first ^ second ^ jnp.uint32(_PARITY))
    x = jnp.broadcast_to(first, count)
    y = jnp.arange(count, dtype=jnp.uint32) + second
    for turn in range(20):
        x = x + y
        rotation = _ROTATIONS[turn % 8]
        y = (y << rotation | y >> 32 - rotation) ^ x
        if turn % 4 == 3:
            number = turn // 4 + 1
            x = x + schedule[number % 3]
            y = y + schedule[(number + 1) % 3] + jnp.uint32(number)
    return x ^ y


def _is_threefry_on_cpu(key: Array) -> bool:
    """Tell whether `jax.random.bits` would run this very hash, in that loop."""
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    if jax.default_backend() != "cpu" or not partitionable:
        return False
    one = jax.random.key_data(key).shape == (2,)  # not many, which jax refuses
    return one and str(jax.random.key_impl(key)) == "threefry2x32"


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
