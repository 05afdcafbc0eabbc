"""Integers below a bound: exact products and frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import numerics

words = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(st.lists(st.tuples(words, words), min_size=8, max_size=8))
def test_scaled_equals_the_exact_quotient(pairs):
    x, y = (np.array(column, np.uint32) for column in zip(*pairs))
    expected = [(a * b) >> 32 for a, b in pairs]
    np.testing.assert_array_equal(numerics.multiply_high(jnp.asarray(x), jnp.asarray(y)), expected)


@pytest.mark.parametrize("below", [1, 7, 1000])
def test_integers_below_a_bound_are_equally_likely(below):
    drawn = jax.jit(lambda key, n: numerics.integers(key, (200, 1000), n))(jax.random.key(1), below)
    counts = np.bincount(np.asarray(drawn).ravel(), minlength=below)
    assert counts.size == below  # all are in range
    assert scipy.stats.chisquare(counts).pvalue > 1e-3 or below == 1


def test_integers_below_a_large_bound_use_all_bits():
    below = 2**31 - 1
    drawn = np.asarray(numerics.integers(jax.random.key(0), (100_000,), below), np.int64)
    assert drawn.min() >= 0 and drawn.max() < below
    assert scipy.stats.kstest(drawn / below, "uniform").pvalue > 1e-3
    assert np.unique(drawn).size > 99_990  # all 32 bits are used
