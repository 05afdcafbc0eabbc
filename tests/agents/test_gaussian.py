"""Densities, divergences and ratios of diagonal Gaussians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import gaussian
from agents.gaussian import Behaviour

MEAN, VARIANCE, ACTION = np.float32([[0.1, -0.2], [0.2, 0.05], [0.4, -0.5]])
MU = Behaviour(*np.float32([[0, 0], [0.1, 0.1]]))
log_prob, kl, trust_ = map(jax.jit, (gaussian.log_prob, gaussian.kl, gaussian.trust))
kl_gradient = jax.jit(jax.grad(gaussian.kl, (2, 3)))  # by the second distribution

numbers = st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3).map(np.float32)
variances = st.lists(st.floats(0.0625, 4, width=32), min_size=3, max_size=3).map(np.float32)


def test_densities_and_divergences_worked_by_hand():
    assert float(log_prob(MEAN, VARIANCE, ACTION)) == pytest.approx(-0.660291973, rel=1e-5)
    assert float(log_prob(*MU, ACTION)) == pytest.approx(-1.585291973, rel=1e-5)
    trust = trust_(MEAN, VARIANCE, MU, ACTION)
    assert float(jnp.exp(trust.log_ratio)) == pytest.approx(2.5218682604, rel=1e-5)
    assert float(trust.kl) == pytest.approx(0.675, rel=1e-5)
    assert float(trust.reverse_kl) == pytest.approx(0.5, rel=1e-5)


def test_gradients_of_the_divergence_worked_by_hand():
    by_mean, by_variance = kl_gradient(*MU, MEAN, VARIANCE)
    np.testing.assert_allclose(by_mean, [0.5, -4], rtol=1e-5)
    np.testing.assert_allclose(by_variance, [1.125, -18], rtol=1e-5)


def test_equal_variances_worked_by_hand():
    mu = Behaviour(*np.float32([[0, 0], [0.04, 0.04]]))
    trust = trust_(MEAN, np.float32(0.04), mu, ACTION)
    assert float(jnp.exp(trust.log_ratio)) == pytest.approx(17.7254241215, rel=1e-4)
    assert float(trust.kl) == pytest.approx(0.625, rel=1e-5)
    grad, _ = kl_gradient(*mu, MEAN, mu.variance)
    np.testing.assert_allclose(grad, [2.5, -5], rtol=1e-5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(numbers, variances, numbers, variances)
def test_divergences_are_not_negative_and_agree_for_equal_variances(mean, variance, other, wide):
    assert float(kl(mean, variance, other, wide)) >= -1e-4
    assert float(kl(mean, variance, mean, variance)) == pytest.approx(0, abs=1e-6)
    there, back = kl(mean, wide, other, wide), kl(other, wide, mean, wide)
    np.testing.assert_allclose(there, back, rtol=1e-3, atol=1e-4)


def quadrature(mean, variance, order=24):
    """Return Gauss-Hermite points `[n, 2]` and weights `[n]` for expectations under a Gaussian."""
    points, weights = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(points, points), axis=-1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel() / (2 * np.pi)
    return np.float32(mean + np.sqrt(variance) * grid), weights


pairs = lambda low, high: st.lists(st.floats(low, high, width=32), min_size=2, max_size=2)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(pairs(-2, 2), pairs(0.125, 2), pairs(-0.75, 0.75), pairs(0.5, 1.25))
def test_importance_ratios_are_unbiased(mean, variance, shift, factor):
    """Under the behaviour policy, ratios average to 1 and weighted gradients are the policy's."""
    mu = Behaviour(*np.float32([mean, variance]))
    mean = mu.mean + np.float32(shift) * np.sqrt(mu.variance)
    variance = mu.variance * np.float32(factor)
    stored, weights = quadrature(*mu)
    log_ratio = trust_(np.broadcast_to(mean, stored.shape), variance, mu, stored).log_ratio
    weights = weights * np.exp(np.asarray(log_ratio))
    assert weights.sum() == pytest.approx(1, abs=2e-3)
    drawn, own = quadrature(mean, variance)
    gradients = np.asarray(value_gradient(mean, variance, drawn))
    expected, scale = own @ gradients, own @ np.abs(gradients)
    found = weights @ np.asarray(value_gradient(mean, variance, stored))
    np.testing.assert_array_less(np.abs(found - expected), 5e-3 * scale)


@jax.jit
def value_gradient(mean, variance, actions):
    """Return a value times the gradient of the log density by the mean, `[n, 2]`."""
    value = lambda a: jnp.sin(a[0]) + a[1] * a[0]
    score = jax.grad(gaussian.log_prob)
    return jax.vmap(lambda a: value(a) * score(mean, variance, a))(actions)


def test_draws_lie_within_three_standard_deviations():
    mean, variance = jnp.full((100_000, 1), 2.0), jnp.full((100_000, 1), 0.25)
    z = (gaussian.sample(mean, variance, jax.random.key(0)) - mean) / 0.5
    assert float(jnp.abs(z).max()) <= 3 + 1e-5
    assert float(z.std()) == pytest.approx(0.9866, abs=0.01)  # of the normal truncated at 3
    normal = jax.random.truncated_normal(jax.random.key(0), -3, 3, z.shape)
    np.testing.assert_allclose(z, normal, atol=1e-5)  # not its mirror image


def test_extreme_ratios_stay_finite():
    mu = Behaviour(jnp.zeros(2), jnp.full(2, 1e-4))
    trust = trust_(jnp.full(2, 50.0), jnp.asarray(1e-4), mu, jnp.zeros(2))
    assert float(trust.log_ratio) == -gaussian.LOG_RATIO_LIMIT and np.isfinite(trust.kl)
