"""Keys whose hash XLA compiles to one operation on CPU: the same numbers, sooner."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import random as jax_random

from jaxreplay._internal.dependence import computed_once
from jaxreplay.types import Array

# By round of threefry2x32 (Salmon et al. 2011, table 2), and the constant of its key schedule.
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def unrolled(key: Array) -> Array:
    """Return a key, or keys, that give the very numbers of the given ones, and are hashed faster.

    On CPU, jax hashes threefry2x32 in a loop of five small steps, which XLA runs operation by
    operation: in a compiled training loop most of what runs is that. Written out, each hash becomes
    one operation, equal ones become one, and there is less to compile. `jax.random` takes such keys
    like any others, and what is split off them is like them.

    A key of another kind, and any key on a device that is no CPU, is returned as it is. Such a key
    and one made of it have different dtypes: keep the one or the other in the carry of a loop.

    Args:
      key: `[...]` PRNG keys, typed or raw.
    """
    if not _loops(key):
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


def _loops(key: Array) -> bool:
    """Tell whether jax would hash this key in a loop."""
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    if jax.default_backend() != "cpu" or not partitionable:
        return False
    return str(jax.random.key_impl(key)) == "threefry2x32"


def _threefry(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return threefry2x32 of the numbers up to the product of `shape`, under a key `[2]`."""
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return _hash(key, jnp.zeros_like(count), count)


def _hash(key: Array, x: Array, y: Array) -> tuple[Array, Array]:
    first, second = key
    schedule = (first, second, first ^ second ^ jnp.uint32(_PARITY))
    x, y = x + first, y + second
    for turn in range(20):
        x = x + y
        rotation = _ROTATIONS[turn % 8]
        y = (y << rotation | y >> 32 - rotation) ^ x
        if turn % 4 == 3:
            number = turn // 4 + 1
            x = x + schedule[number % 3]
            y = y + schedule[(number + 1) % 3] + jnp.uint32(number)
    return x, y


@functools.partial(jax.jit, static_argnums=1, inline=True)
def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return computed_once(jnp.stack(_threefry(key, shape), axis=-1))


@functools.partial(jax.jit, inline=True)
def _fold_in(key: Array, data: Any) -> Array:
    low = jnp.asarray(data).astype(jnp.uint32)
    return computed_once(jnp.stack(_hash(key, jnp.zeros_like(low), low)))


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def _random_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    if width == 64 or math.prod(shape) > 2**32:
        return _stock().random_bits(key, width, shape)
    high, low = _threefry(key, shape)
    return computed_once(high ^ low).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


def _stock() -> Any:
    return jax_random.threefry_prng_impl


_UNROLLED = jax_random.define_prng_impl(
    key_shape=(2,),
    seed=_stock().seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_unrolled",
    tag="fry",
)
