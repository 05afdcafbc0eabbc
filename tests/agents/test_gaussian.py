"""Densities, divergences and ratios of diagonal Gaussians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import gaussian
from agents.gaussian import Behaviour

MEAN, VARIANCE = jnp.asarray([0.1, -0.2]), jnp.asarray([0.2, 0.05])
MU = Behaviour(jnp.zeros(2), jnp.full(2, 0.1))
ACTION = jnp.asarray([0.4, -0.5])

numbers = st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3).map(jnp.asarray)
variances = st.lists(st.floats(0.0625, 4, width=32), min_size=3, max_size=3).map(jnp.asarray)


def test_worked_by_hand():
    assert float(gaussian.log_prob(MEAN, VARIANCE, ACTION)) == pytest.approx(-0.660291973, rel=1e-5)
    assert float(gaussian.log_prob(*MU, ACTION)) == pytest.approx(-1.585291973, rel=1e-5)
    trust = gaussian.trust(MEAN, VARIANCE, MU, ACTION)
    assert float(jnp.exp(trust.log_ratio)) == pytest.approx(2.5218682604, rel=1e-5)
    assert float(trust.kl) == pytest.approx(0.675, rel=1e-5)
    assert float(trust.reverse_kl) == pytest.approx(0.5, rel=1e-5)


def test_gradients_of_the_divergence_worked_by_hand():
    by_mean, by_variance = jax.grad(lambda m, v: gaussian.kl(*MU, m, v), (0, 1))(MEAN, VARIANCE)
    np.testing.assert_allclose(by_mean, [0.5, -4], rtol=1e-5)
    np.testing.assert_allclose(by_variance, [1.125, -18], rtol=1e-5)


def test_equal_variances_worked_by_hand():
    mu = Behaviour(jnp.zeros(2), jnp.full(2, 0.04))
    trust = gaussian.trust(MEAN, jnp.asarray(0.04), mu, ACTION)
    assert float(jnp.exp(trust.log_ratio)) == pytest.approx(17.7254241215, rel=1e-4)
    assert float(trust.kl) == pytest.approx(0.625, rel=1e-5)
    grad = jax.grad(lambda m: gaussian.kl(*mu, m, jnp.full(2, 0.04)))(MEAN)
    np.testing.assert_allclose(grad, [2.5, -5], rtol=1e-5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(numbers, variances, numbers, variances)
def test_divergences_are_not_negative_and_agree_for_equal_variances(mean, variance, other, wide):
    assert float(gaussian.kl(mean, variance, other, wide)) >= -1e-4
    assert float(gaussian.kl(mean, variance, mean, variance)) == pytest.approx(0, abs=1e-6)
    there, back = gaussian.kl(mean, wide, other, wide), gaussian.kl(other, wide, mean, wide)
    np.testing.assert_allclose(there, back, rtol=1e-3, atol=1e-4)


def test_the_policy_that_acts_is_near_itself():
    trust = gaussian.trust(MEAN, VARIANCE, Behaviour(MEAN, VARIANCE), ACTION)
    assert float(trust.log_ratio) == 0 and float(trust.kl) == pytest.approx(0, abs=1e-7)
    grads = jax.grad(lambda m, v: gaussian.kl(MEAN, VARIANCE, m, v), (0, 1))(MEAN, VARIANCE)
    np.testing.assert_allclose(jnp.stack(grads), 0, atol=1e-5)


def test_importance_ratios_are_unbiased():
    """Under the behaviour, ratios average to 1 and weigh any gradient as the policy would."""
    count = 400_000
    actions = MU.mean + jnp.sqrt(MU.variance) * jax.random.normal(jax.random.key(0), (count, 2))
    mean, variance = jnp.asarray([0.1, -0.05]), jnp.asarray([0.08, 0.09])
    ratio = jnp.exp(gaussian.log_prob(mean, variance, actions) - gaussian.log_prob(*MU, actions))
    assert float(ratio.mean()) == pytest.approx(1, abs=0.01)
    on_policy = mean + jnp.sqrt(variance) * jax.random.normal(jax.random.key(1), (count, 2))
    value = lambda a: jnp.sin(3 * a[:, :1]) + a[:, 1:]
    score = lambda a: value(a) * (a - mean) / variance
    weighted = (ratio[:, None] * score(actions)).mean(axis=0)
    np.testing.assert_allclose(weighted, score(on_policy).mean(axis=0), atol=0.04)


def test_draws_lie_within_three_standard_deviations():
    mean, variance = jnp.full((100_000, 1), 2.0), jnp.full((100_000, 1), 0.25)
    z = (gaussian.sample(mean, variance, jax.random.key(0)) - mean) / 0.5
    assert float(jnp.abs(z).max()) <= 3 + 1e-5
    assert float(z.std()) == pytest.approx(0.9866, abs=0.01)  # of the normal cut at 3


def test_extreme_ratios_stay_finite():
    mu = Behaviour(jnp.zeros(2), jnp.full(2, 1e-4))
    trust = gaussian.trust(jnp.full(2, 50.0), jnp.asarray(1e-4), mu, jnp.zeros(2))
    assert float(trust.log_ratio) == -gaussian.LOG_RATIO_LIMIT and np.isfinite(trust.kl)
