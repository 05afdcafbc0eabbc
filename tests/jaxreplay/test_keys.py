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
USES = {
    "split": lambda key: jax.random.key_data(jax.random.split(key, 5)),
    "split to a grid": lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**31 + 5)),
    "fold_in of a negative number": lambda key: jax.random.key_data(
        jax.random.fold_in(key, jnp.int32(-3))
    ),
    "bits": lambda key: jax.random.bits(key, (3, 4)),
    "one word": lambda key: jax.random.bits(key),
    "no bits": lambda key: jax.random.bits(key, (0,)),
    "bytes": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "short words": lambda key: jax.random.bits(key, (7,), jnp.uint16),
    "normal": lambda key: jax.random.normal(key, (6,)),
    "randint": lambda key: jax.random.randint(key, (6,), 0, 10),
    "permutation": lambda key: jax.random.permutation(key, 9),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (6,)),
    "the library's bits": lambda key: numerics.bits(key, (2, 5)),
}


def _own(use):
    """Return the values of JAX's own key."""
    key = jax.random.key(5)
    if use == "the library's bits":
        return jax.random.bits(key, (2, 5))
    return USES[use](key)


@pytest.mark.parametrize("use", USES)
def test_numbers_equal_those_of_jax(use):
    expected = _own(use)
    for key in (jax.random.key(5), jax.random.PRNGKey(5)):
        mine = jax.jit(USES[use])(unrolled(key))
        np.testing.assert_array_equal(mine, expected)
        assert mine.dtype == expected.dtype
    np.testing.assert_array_equal(USES[use](unrolled(jax.random.key(5))), expected)


def test_a_key_can_be_pickled():
    key = unrolled(jax.random.key(5))
    again = pickle.loads(pickle.dumps(key))
    assert again.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(key))


@settings(deadline=None, max_examples=20)
@given(st.integers(-(2**31), 2**32 - 1), st.integers(0, 2**32 - 1))
def test_any_key_and_number_give_the_numbers_of_jax(seed, number):
    key = jax.random.key(seed)
    for use in (jax.random.fold_in, lambda key, number: jax.random.split(key, 2)[1]):
        mine = use(unrolled(key), np.uint32(number))
        np.testing.assert_array_equal(
            jax.random.key_data(mine), jax.random.key_data(use(key, np.uint32(number)))
        )


def test_64_bit_words_equal_those_of_jax():
    with jax.enable_x64(True):
        key = jax.random.key(5)
        expected = jax.random.bits(key, (3,), jnp.uint64)
        np.testing.assert_array_equal(jax.random.bits(unrolled(key), (3,), jnp.uint64), expected)


def test_numbers_equal_those_of_jax_under_vmap():
    keys = jax.random.split(jax.random.key(2), 6).reshape(2, 3)
    mine = jax.vmap(jax.vmap(lambda key: numerics.bits(key, (4,))))(keys)
    split = jax.random.key_data(jax.vmap(jax.vmap(jax.random.split))(unrolled(keys)))
    for at in np.ndindex(2, 3):
        np.testing.assert_array_equal(mine[at], jax.random.bits(keys[at], (4,)))
        expected = jax.random.key_data(jax.random.split(keys[at]))
        np.testing.assert_array_equal(split[at], expected)


@on_cpu
def test_compiled_programs_contain_no_loop():
    def use(key):
        first, second = jax.random.split(jax.random.fold_in(key, 3))
        return jax.random.normal(first, (4,)) + jax.random.uniform(second, (4,))

    def loops(key):
        return "while(" in jax.jit(use).lower(key).compile().as_text()

    assert loops(jax.random.key(1))
    assert not loops(unrolled(jax.random.key(1)))


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
def test_unrolled_keys_keep_their_type():
    key = unrolled(jax.random.key(4))
    assert unrolled(key) is key
    assert jax.random.split(key).dtype == key.dtype


def test_other_generators_are_returned_unchanged():
    key = jax.random.key(5, impl="rbg")
    assert unrolled(key) is key
    np.testing.assert_array_equal(numerics.bits(key, (9,)), jax.random.bits(key, (9,)))
    with jax.threefry_partitionable(False):
        key = jax.random.key(5)
        assert unrolled(key) is key
        np.testing.assert_array_equal(numerics.bits(key, (9,)), jax.random.bits(key, (9,)))


def test_arrays_of_keys_are_refused_as_in_jax():
    with pytest.raises((TypeError, ValueError), match="single key"):
        numerics.bits(jax.random.split(jax.random.key(5)), (2,))
