"""The squashed Gaussian against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from agents import distributions
from agents.distributions import TanhNormal

log_prob, sample_and_log_prob = map(
    jax.jit, (distributions.log_prob, distributions.sample_and_log_prob)
)


def make(mean, std, shape=(1,)) -> TanhNormal:
    return TanhNormal(np.full(shape, mean, np.float32), np.full(shape, np.log(std), np.float32))


def test_log_prob_is_the_numerical_change_of_variables():
    mean, std, action = 0.3, 0.6, np.linspace(-0.95, 0.95, 39)
    step = 1e-4
    cdf = stats.norm(mean, std).cdf
    density = (cdf(np.arctanh(action + step)) - cdf(np.arctanh(action - step))) / (2 * step)
    found = log_prob(make(mean, std, (39, 1)), np.float32(action)[:, None])
    np.testing.assert_allclose(found, np.log(density), atol=1e-4)


def test_dimensions_are_independent():
    dist, action = TanhNormal(*np.float32([[0.5, -1.0], [-0.2, 0.4]])), np.float32([0.1, -0.6])
    column = TanhNormal(dist.mean[:, None], dist.log_std[:, None])
    parts = np.asarray(log_prob(column, action[:, None]))
    np.testing.assert_allclose(log_prob(dist, action), parts.sum(), rtol=1e-5)


def test_samples_follow_the_distribution_and_return_their_log_prob():
    dist = make(-0.2, 0.5, (20_000, 1))
    action, found = sample_and_log_prob(dist, jax.random.key(0))
    assert stats.kstest(np.arctanh(action[:, 0]), stats.norm(-0.2, 0.5).cdf).pvalue > 1e-3
    np.testing.assert_allclose(found, log_prob(dist, action), atol=1e-2)


def test_outputs_are_split_and_log_std_clipped():
    dist = distributions.from_outputs(jnp.float32([[1.0, 2.0, -30.0, 5.0]]))
    np.testing.assert_array_equal(dist.mean, [[1.0, 2.0]])
    np.testing.assert_array_equal(dist.log_std, [[-20.0, 2.0]])


@pytest.mark.parametrize("mean", [-30.0, 30.0])
def test_log_prob_of_saturated_actions_has_finite_gradients(mean):
    @jax.jit
    @jax.value_and_grad
    def loss(mean):
        dist = TanhNormal(mean, jnp.zeros(1))
        action, log_prob = distributions.sample_and_log_prob(dist, jax.random.key(0))
        return action.sum() + log_prob + distributions.log_prob(dist, action)

    value, grad = loss(np.float32([mean]))
    assert np.isfinite(value) and np.isfinite(grad).all()
