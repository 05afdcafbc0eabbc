"""DisCor: weights and errors by hand, and the agents that learn them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.learned_weights import WeightedState
from experiments.runs import registry
from jaxreplay import objectives, testing
from jaxreplay.contrib import discor
from jaxreplay.contrib.discor import DisCorConfig, DistributionCorrection
from jaxreplay.methods import per, uniform
from jaxreplay.types import Requirements, Sample, Transition
from tests.jaxreplay.contrib.small_agents import fed_by, made
from tests.refusals import refused

ERRORS = np.array([10.0, 20, 0, 5])  # of the target network at the next states
DISCOUNT = np.array([0.99, 0.99, 0.99, 0])
SHARES = [0.1480594082, 0.055015425, 0.3984625834, 0.3984625834]
TD = np.array([1.0, -2, 0.5, 3])


def sample_of(discount=DISCOUNT, weights=None):
    """A batch whose observations are row numbers."""
    count = len(discount)
    rows = jnp.arange(count)
    row = Transition(rows[:, None], rows, jnp.zeros(count), jnp.float32(discount), rows[:, None])
    return Sample(rows, row, jnp.ones(count) if weights is None else weights, rows)


def of_table(params, obs, action):
    """A network whose parameters are its outputs, one per row."""
    return params[obs[:, 0]]


def state_of(config, now, later):
    state = DistributionCorrection(config).init(jnp.float32(now))
    return state._replace(target_params=jnp.float32(later))


@functools.partial(jax.jit, static_argnums=0)
def learn(config, state, sample, td):
    learned, rows = DistributionCorrection(config), jnp.arange(len(td))
    return learned.learn(state, of_table, sample, rows, jnp.float32(td))


_weights = jax.jit(discor.weights)


def weights_of(errors, discount=DISCOUNT, temperature=10.0, given=None):
    given = jnp.ones(len(errors)) if given is None else given
    arrays = map(jnp.float32, (errors, discount, temperature, given))
    return np.asarray(_weights(*arrays))


def test_weights_and_loss_by_hand():
    np.testing.assert_allclose(weights_of(ERRORS), 4 * np.array(SHARES), rtol=1e-5)
    n_step = weights_of(ERRORS, np.full(4, 0.99**3))
    expected = [0.1772383156, 0.0671679529, 0.4676846495, 0.287909082]
    np.testing.assert_allclose(n_step, 4 * np.array(expected), rtol=1e-5)
    objective = discor.method(DisCorConfig(loss="mse")).objective
    sample = sample_of(weights=jnp.float32(weights_of(ERRORS)))
    loss = objective.critic(objective.error(jnp.float32(TD)), sample, None)
    np.testing.assert_allclose(2 * loss, 4.0539000045, rtol=1e-5)


def test_one_update_by_hand():
    """Adam's first step has the size of the learning rate."""
    config = DisCorConfig(learning_rate=0.5)
    now, targets = np.array([8.0, 15, 3, 4]), np.array([10.9, 21.8, 0.5, 3])
    after = learn(config, state_of(config, now, ERRORS), sample_of(), TD)
    moved = now - 0.5 * np.sign(now - targets)
    np.testing.assert_allclose(after.params, moved, rtol=1e-5)
    np.testing.assert_allclose(after.target_params, 0.995 * ERRORS + 0.005 * moved, rtol=1e-5)
    np.testing.assert_allclose(after.temperature, 9.9875, rtol=1e-6)
    assert after.error == 7.5
    np.testing.assert_allclose(4 * after.effective, 2.919766458, rtol=1e-5)
    gradient = 2 * (now - targets) / 4
    moments = [x for x in jax.tree.leaves(after.opt_state) if jnp.shape(x) == (4,)]
    np.testing.assert_allclose(moments[0], 0.1 * gradient, rtol=1e-5)


def test_negative_errors_by_hand():
    sample, errors = sample_of(), [-10.0, 0, 0, 0]
    for nonnegative, expected in ((False, np.exp([0.99, 0, 0, 0])), (True, np.ones(4))):
        config = DisCorConfig(nonnegative=nonnegative)
        learned, state = DistributionCorrection(config), state_of(config, errors, errors)
        found = learned.weights(state, of_table, sample, jnp.arange(4))
        np.testing.assert_allclose(found, 4 * expected / expected.sum(), rtol=1e-5)


def test_weights_are_normalised_invariant_and_finite():
    even, order = np.full(4, 0.9), np.array([2, 0, 3, 1])
    np.testing.assert_array_equal(weights_of(np.zeros(4)), np.ones(4))  # also at terminal rows
    np.testing.assert_array_equal(weights_of(np.full(4, 7.0), even), np.ones(4))
    shifted = weights_of(ERRORS + 100, even)
    np.testing.assert_allclose(shifted, weights_of(ERRORS, even), rtol=1e-4)
    np.testing.assert_allclose(weights_of(ERRORS, temperature=1e9), np.ones(4), rtol=1e-6)
    permuted = weights_of(ERRORS[order], DISCOUNT[order])
    np.testing.assert_allclose(permuted, weights_of(ERRORS)[order], rtol=1e-6)
    np.testing.assert_allclose(weights_of(ERRORS).sum(), 4, rtol=1e-6)
    extreme = weights_of(np.array([0.0, 3e38, 0, -3e38]), even, temperature=1e-3)
    np.testing.assert_array_equal(extreme, [0, 0, 0, 4])
    lost = weights_of(np.array([np.nan, 0, np.inf, 0]), even)
    np.testing.assert_allclose(lost, np.array([4, 4, 0, 4]) / 3, rtol=1e-6)


def test_weights_multiply_those_of_the_sampler():
    given = np.array([1.0, 0.5, 0.5, 1.0])
    expected = given * SHARES / (given * SHARES).sum()
    np.testing.assert_allclose(weights_of(ERRORS, given=given), 4 * expected, rtol=1e-5)


def test_the_temperature_stays_positive_and_finite():
    config = DisCorConfig(rate=1.0, least=0.25)
    for now, expected in ((-3.0, 0.25), (np.inf, 10.0), (6.0, 6.0)):
        after = learn(config, state_of(config, np.full(4, now), ERRORS), sample_of(), TD)
        assert after.temperature == expected


def test_the_method_is_uniform_with_a_weighted_loss():
    method = discor.method()
    assert method.sampler == uniform.sampler() and method.requires.learned_weights
    assert (
        method.objective._replace(requires=Requirements(), learned_weights=None)
        == objectives.weighted()
    )
    assert discor.method() == discor.method()


SLOW = ("discrete_sac", "td3", "td7", "ddpg", "naf")


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in fed_by("discor")],
)
def test_agents_learn_as_with_uniform_replay_while_errors_are_zero(name):
    """Errors are learned afterwards, and weights then change the update."""
    agent, state, sample = made(name, discor.method(DisCorConfig(hidden=(8,))).objective, 4)
    plain, alone, _ = made(name, objectives.weighted(), 4)
    assert isinstance(state, WeightedState) and not isinstance(alone, WeightedState)
    jax.tree.map(np.testing.assert_array_equal, state.agent, alone)
    zeros = jax.tree.map(jnp.zeros_like, state.weights.target_params)
    update, key = jax.jit(agent.update), jax.random.key(2)
    even = state._replace(weights=state.weights._replace(target_params=zeros))
    after, info = update(even, sample, key)
    testing.same(after.agent, jax.jit(plain.update)(alone, sample, key)[0], rtol=1e-5)
    np.testing.assert_allclose(info.metrics["effective_weights"], 1, rtol=1e-6)
    assert after.weights.temperature != even.weights.temperature
    hot = even.weights._replace(target_params=state.weights.params, temperature=jnp.float32(1e-2))
    changed, info = update(even._replace(weights=hot), sample, key)
    assert info.metrics["effective_weights"] < 1
    pairs = zip(jax.tree.leaves(changed.agent), jax.tree.leaves(after.agent), strict=True)
    assert any((a != b).any() for a, b in pairs)
    told, expected = (
        jax.jit(maker.feedback)(start, sample.transition, key)["td_error"]
        for maker, start in ((agent, state), (plain, alone))
    )
    np.testing.assert_array_equal(told, expected)


def test_errors_converge_to_the_discounted_sum_of_td_errors():
    """Two steps with |td| = 1, of which the second is terminal, have errors 1.9 and 1."""
    config, sample = DisCorConfig(learning_rate=0.05, tau=0.1), sample_of(np.array([0.9, 0.0]))
    following = sample.transition._replace(next_obs=jnp.array([[1], [1]]))
    sample, td = sample._replace(transition=following), jnp.array([-1.0, 1.0])
    step = lambda _, state: learn(config, state, sample, td)
    state = jax.lax.fori_loop(0, 400, step, state_of(config, np.zeros(2), np.zeros(2)))
    np.testing.assert_allclose(state.params, [1.9, 1.0], atol=0.02)


def test_other_agents_refuse_to_learn_weights():
    objective = discor.method().objective
    for name in registry.AGENTS.keys() - {*fed_by("discor")}:
        with refused("weights"):
            made(name, objective, 4)
    weighted = per.method()._replace(objective=objective)
    assert registry.AGENTS["td3"].offers.lack(weighted.requires) == []
