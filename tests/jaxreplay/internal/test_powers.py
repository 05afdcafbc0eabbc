"""Powers by logarithms: NumPy's values in double precision, and exact special cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay.numerics import to_power

BASES = np.logspace(-30, 30, 1001).astype(np.float32)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("exponent", [-1.0, -0.4, 0.0, 0.5, 0.6, 1.0])
def test_powers_equal_those_of_numpy(exponent, known):
    raise_to = jax.jit(lambda base, x: to_power(base, exponent if known else x))
    got = np.asarray(raise_to(BASES, jnp.float32(exponent)), np.float64)
    np.testing.assert_allclose(got, BASES.astype(np.float64) ** np.float32(exponent), rtol=6e-6)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("exponent", [-0.4, 0.0, 0.6])
def test_powers_of_0_1_inf_and_nan_are_exact(exponent, known):
    base = jnp.asarray([0.0, 1.0, np.inf, np.nan])
    got = to_power(base, exponent if known else jnp.float32(exponent))
    expected = {-0.4: [np.inf, 1, 0, np.nan], 0.0: [1] * 4, 0.6: [0, 1, np.inf, np.nan]}[exponent]
    np.testing.assert_array_equal(got, expected)


def test_derivatives_equal_those_of_powers():
    base = jnp.asarray([0.01, 1.0, 30.0])
    for exponent in (-0.4, 0.6, 1.0):
        slope = jax.vmap(jax.grad(lambda x, e=exponent: to_power(x, e)))(base)
        np.testing.assert_allclose(slope, exponent * base ** (exponent - 1), rtol=1e-5)


def test_powers_with_static_exponents_1_and_2_are_exact():
    np.testing.assert_array_equal(to_power(jnp.asarray(BASES[300:700]), 2), BASES[300:700] ** 2)
    np.testing.assert_array_equal(to_power(jnp.asarray(BASES), 1.0), BASES)
    np.testing.assert_array_equal(to_power(jnp.asarray(BASES), 1), BASES)
