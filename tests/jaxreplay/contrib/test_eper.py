"""EPER: priorities by hand, and DQN's prediction of the mean TD error."""

import jax
import jax.numpy as jnp
import numpy as np

from agents.dqn import DQNConfig, dqn
from agents.types import Discrete
from jaxreplay.contrib import eper
from jaxreplay.methods import per
from jaxreplay.types import Sample, Transition


def rows(rewards):
    """Return terminal transitions from two alternating one-hot states."""
    count = len(rewards)
    obs = jnp.eye(2)[jnp.arange(count) % 2]
    zeros = jnp.zeros(count)
    row = Transition(obs, zeros.astype(jnp.int32), rewards, zeros, obs)
    return Sample(jnp.arange(count), row, jnp.ones(count), jnp.ones(count, jnp.int32))


def test_dqn_predicts_the_mean_of_noisy_errors():
    """Rewards are +-1 in state 0 and 1 in state 1; the critic is fixed."""
    config = DQNConfig(hidden=(16,), learning_rate=0.01)
    agent = dqn(config, Discrete(2), eper.method().objective)
    state = agent.init(jax.random.key(0), jnp.zeros(2), jnp.int32(0))
    fixed = state

    @jax.jit
    def step(expected, key):
        noise = jnp.where(jax.random.bernoulli(key, 0.5, (16,)), 1.0, -1.0)
        rewards = jnp.where(jnp.arange(32) % 2 == 0, jnp.repeat(noise, 2), 1.0)
        after, info = agent.update(fixed._replace(expected=expected), rows(rewards), key)
        return after.expected, info.feedback

    expected, told = jax.lax.scan(step, state.expected, jax.random.split(jax.random.key(1), 1500))
    row, feedback = rows(jnp.zeros(2)).transition, jax.jit(agent.feedback)
    q = feedback(fixed, row, jax.random.key(0))["q_value"]
    late = np.asarray(told["expected_td_error"][-300:]).mean(axis=0)[:2]
    np.testing.assert_allclose(late, [0 - q[0], 1 - q[1]], atol=0.1)
    assert np.abs(told["td_error"][:, 0]).mean() > 0.8  # PER's priority would be this large
    ours = feedback(fixed._replace(expected=expected), row, jax.random.key(0))
    np.testing.assert_allclose(ours["expected_td_error"], late, atol=0.15)


def test_predictions_do_not_change_the_critic():
    config = DQNConfig(hidden=(16,))
    batch, found = rows(jnp.arange(4.0)), []
    for method in (eper.method(), per.method()):
        agent = dqn(config, Discrete(2), method.objective)
        state = agent.init(jax.random.key(0), jnp.zeros(2), jnp.int32(0))
        update = jax.jit(agent.update)
        for seed in range(3):
            state, info = update(state, batch, jax.random.key(seed))
        found.append((state, info))
    (ours, told), (theirs, plain) = found
    np.testing.assert_allclose(told.feedback["td_error"], plain.feedback["td_error"], rtol=1e-5)
    assert theirs.expected is None and "expected_td_error" not in plain.feedback
    for one, other in zip(*(jax.tree.leaves(s.params) for s in (ours, theirs)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
