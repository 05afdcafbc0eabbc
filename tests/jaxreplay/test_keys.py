"""Keys hashed without a loop give the same numbers as JAX's keys."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import numerics
from jaxreplay.loops import unrolled

on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere jax writes it out")
data = jax.random.key_data
USES = {
    "split": lambda key: data(jax.random.split(key, 5)),
    "split to a grid": lambda key: data(jax.random.split(key, (2, 3))),
    "fold_in": lambda key: data(jax.random.fold_in(key, 2**31 + 5)),
    "fold_in of a negative number": lambda key: data(jax.random.fold_in(key, jnp.int32(-3))),
    "bits": lambda key: jax.random.bits(key, (3, 4)),
    "one word": lambda key: jax.random.bits(key),
    "no bits": lambda key: jax.random.bits(key, (0,)),
    "bytes": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "short words": lambda key: jax.random.bits(key, (7,), jnp.uint16),
    "normal": lambda key: jax.random.normal(key, (6,)),
    "randint": lambda key: jax.random.randint(key, (6,), 0, 10),
    "permutation": lambda key: jax.random.permutation(key, 9),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (6,)),
}


def every_use(key):
    return {name: use(key) for name, use in USES.items()}


def same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, expected)


def test_numbers_equal_those_of_jax():
    key, uses = jax.random.key(5), jax.jit(every_use)
    expected = uses(key)
    for converted in (unrolled(key), unrolled(jax.random.PRNGKey(5))):
        same(uses(converted), expected)
    same(every_use(unrolled(key)), expected)
    same(numerics.bits(key, (3, 4)), expected["bits"])


def test_numbers_equal_those_of_jax_under_vmap():
    keys = jax.random.split(jax.random.key(2), 6).reshape(2, 3)
    nested = lambda function: jax.jit(jax.vmap(jax.vmap(function)))
    bits = nested(lambda key: (numerics.bits(key, (4,)), data(jax.random.split(unrolled(key)))))
    stock = nested(lambda key: (jax.random.bits(key, (4,)), data(jax.random.split(key))))
    same(bits(keys), stock(keys))


@settings(deadline=None, max_examples=20)
@given(st.integers(-(2**31), 2**32 - 1), st.integers(0, 2**32 - 1))
def test_any_key_and_number_give_the_numbers_of_jax(seed, number):
    key = jax.random.key(seed)
    for use in (jax.random.fold_in, lambda key, number: jax.random.split(key, 2)[1]):
        found, expected = (use(k, np.uint32(number)) for k in (unrolled(key), key))
        np.testing.assert_array_equal(data(found), data(expected))


def test_64_bit_words_equal_those_of_jax():
    with jax.enable_x64(True):
        key = jax.random.key(5)
        same(*(jax.random.bits(k, (3,), jnp.uint64) for k in (unrolled(key), key)))


@on_cpu
def test_compiled_programs_contain_no_loop():
    def use(key):
        first, second = jax.random.split(jax.random.fold_in(key, 3))
        return jax.random.normal(first, (4,)) + jax.random.uniform(second, (4,))

    for convert, loops in ((lambda key: key, True), (unrolled, False)):
        text = jax.jit(use).lower(convert(jax.random.key(1))).compile().as_text()
        assert ("while(" in text) == loops


@on_cpu
def test_scans_compute_equal_hashes_once_and_hoist_none():
    """XLA would hoist operations on the key alone out of the loop, and then equal hashes differ."""

    def use(key):
        roots = jax.random.split(unrolled(key), 2)

        def body(total, time):
            for _ in range(2):
                keys = jax.vmap(jax.random.fold_in, (0, None))(roots, time)
                total = total + jax.random.bits(keys[0], (4,)) ^ jax.random.bits(keys[1], (4,))
            return total, None

        return jax.lax.scan(body, jnp.zeros(4, jnp.uint32), jnp.arange(9))[0]

    text = jax.jit(use).lower(jax.random.key(1)).compile().as_text()
    assert text.count(" shift-left(") == 20 * 4  # split, both folds and two draws
    before = text[text.index("ENTRY") :]
    assert before.count("fusion(") <= 3, before  # times, a sum of zeros and the split


@on_cpu
def test_unrolled_keys_keep_their_type_and_can_be_pickled():
    key = unrolled(jax.random.key(4))
    assert unrolled(key) is key
    again = pickle.loads(pickle.dumps(key))
    assert again.dtype == key.dtype == jax.random.split(key).dtype
    np.testing.assert_array_equal(data(again), data(key))


def test_other_generators_are_returned_unchanged():
    def check(key):
        assert unrolled(key) is key
        np.testing.assert_array_equal(numerics.bits(key, (9,)), jax.random.bits(key, (9,)))

    check(jax.random.key(5, impl="rbg"))
    with jax.threefry_partitionable(False):
        check(jax.random.key(5))


def test_arrays_of_keys_are_refused_as_in_jax():
    with pytest.raises((TypeError, ValueError), match="single key"):
        numerics.bits(jax.random.split(jax.random.key(5)), (2,))
