"""PRNG keys whose random numbers are unchanged, and whose hash compiles to one operation on CPU.

On one core, training loops of DQN and SAC with PER take 1.5 times as long to compile without these
keys, and a step takes up to 1.06 times as long.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random as jax_random
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxreplay._internal.tuned.once import once
from jaxreplay.types import Array

# Rotations and key schedule constant of threefry2x32 (Salmon et al. 2011, table 2).
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA

_STOCK = jax_random.threefry_prng_impl
_FIRST = np.array([True, False])  # a constant, because XLA would hoist a comparison out of loops


def unrolled(key: Array) -> Array:
    """Convert keys to an implementation with a faster hash (see `buffer.unrolled`)."""
    if not _loops(key):
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


def _loops(key: Array) -> bool:
    """Return whether JAX would hash this key in a loop."""
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    return partitionable and str(jax.random.key_impl(key)) == "threefry2x32"


def _threefry(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Hash an iota of the given shape with threefry2x32 and a key `[2]`."""
    return _hash(key, jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape))


def _hash(key: Array, numbers: Array) -> tuple[Array, Array]:
    """Hash the pairs (0, number) with threefry2x32 and a key `[2]`."""
    first, second = (jnp.broadcast_to(key[i], numbers.shape) for i in range(2))
    return tuple(_HASH.bind(first, second, numbers))


def _rounds(first: Array, second: Array, y: Array) -> tuple[Array, Array]:
    """Hash (0, y) elementwise with the key (first, second); the key schedule also depends on `y`.

    XLA would hoist operations that depend only on the key out of a loop with a constant key. This
    would add six small operations per hash to compile and carry through the loop, and XLA would no
    longer recognise equal hashes.
    """
    lax = jax.lax
    mixed = lax.bitwise_xor(lax.bitwise_xor(first, y), lax.bitwise_xor(second, y))
    schedule = (first, second, lax.bitwise_xor(mixed, np.uint32(_PARITY)))
    x, y = first, lax.add(y, second)
    for turn in range(20):
        x = lax.add(x, y)
        bits = np.uint32(_ROTATIONS[turn % 8])
        high, low = lax.shift_left(y, bits), lax.shift_right_logical(y, np.uint32(32) - bits)
        y = lax.bitwise_xor(lax.bitwise_or(high, low), x)
        if turn % 4 == 3:
            number = turn // 4 + 1
            x = lax.add(x, schedule[number % 3])
            y = lax.add(lax.add(y, schedule[(number + 1) % 3]), np.uint32(number))
    return x, y


def _over_batch(words: Sequence[Array], axes: Sequence[int | None]) -> Any:
    """Hash key words and numbers, some of which have a batch axis."""
    size = next(x.shape[i] for x, i in zip(words, axes, strict=True) if i is not None)
    words = [batching.bdim_at_front(x, i, size) for x, i in zip(words, axes, strict=True)]
    return _HASH.bind(*words), (0, 0)


def _hash_primitive() -> Primitive:
    """Return a primitive for `_rounds`, because tracing its 160 operations is slow."""
    made = Primitive("threefry2x32_unrolled")
    made.multiple_results = True
    made.def_impl(jax.jit(_rounds))
    made.def_abstract_eval(lambda first, second, y: (y, y))
    batching.primitive_batchers[made] = _over_batch
    mlir.register_lowering(made, mlir.lower_fun(_rounds, multiple_results=True))
    return made


# The next three are plain functions, because keys must be picklable.
def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return _split_once(key, shape)


def _fold_in(key: Array, data: Any) -> Array:
    return _fold_in_once(key, data)


def _random_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    return _random_bits_once(key, width, shape)


@functools.partial(jax.jit, static_argnums=1, inline=True)
def _split_once(key: Array, shape: tuple[int, ...]) -> Array:
    return once(_stacked(*_threefry(key, shape)))


@functools.partial(jax.jit, inline=True)
def _fold_in_once(key: Array, data: Any) -> Array:
    return once(_stacked(*_hash(key, jnp.asarray(data).astype(jnp.uint32))))


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def _random_bits_once(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    if width == 64 or math.prod(shape) > 2**32:
        return _STOCK.random_bits(key, width, shape)
    high, low = _threefry(key, shape)
    return once(high ^ low).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


def _stacked(x: Array, y: Array) -> Array:
    """Stack two words of a hash into `[..., 2]`; `jnp.stack` would compile the hash twice."""
    return jnp.where(_FIRST, x[..., None], y[..., None])


_HASH = _hash_primitive()
_UNROLLED = jax_random.define_prng_impl(
    key_shape=(2,),
    seed=_STOCK.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_unrolled",
    tag="fry",
)
