"""Pairs of float32 compared with exact fractions."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import numerics as exact

words = st.integers(0, 2**32 - 1)
wholes = st.floats(2.0**-60, 2.0**60, width=32)
shares = st.floats(2.0**-30, 1, width=32)  # of the value, far above denormal numbers


@settings(deadline=None)  # the first call compiles
@given(st.lists(words, min_size=8, max_size=8), wholes)
def test_fractions_of_a_whole_are_exact(bits, whole):
    value, rest = exact.fraction(jnp.asarray(np.array(bits, np.uint32)), jnp.float32(whole))
    for word, v, r in zip(bits, np.asarray(value), np.asarray(rest), strict=True):
        expected = Fraction(word, 2**32) * Fraction(float(whole))
        error = Fraction(float(v)) + Fraction(float(r)) - expected
        assert abs(error) <= Fraction(float(whole)) / 2**46
        assert r >= 0
        assert Fraction(float(v)) <= expected + Fraction(float(whole)) / 2**46


@settings(deadline=None)
@given(st.lists(st.tuples(wholes, shares, st.sampled_from([-1, 0, 1])), min_size=8, max_size=8))
def test_floor_is_the_largest_float_below(pairs):
    value = np.array([pair[0] for pair in pairs], np.float32)
    rest = np.array([pair[0] * pair[1] * pair[2] * 2.0**-20 for pair in pairs], np.float32)
    below, left = (np.asarray(x) for x in exact.floor(jnp.asarray(value), jnp.asarray(rest)))
    for v, r, b, e in zip(value, rest, below, left, strict=True):
        whole = Fraction(float(v)) + Fraction(float(r))
        above = np.nextafter(b, np.float32(np.inf))
        assert Fraction(float(b)) <= whole < Fraction(float(above))
        assert e >= 0
        assert abs(Fraction(float(b)) + Fraction(float(e)) - whole) <= whole / 2**40
