"""IQL: one update in NumPy, and its policy."""

import functools

import jax
import numpy as np

from agents.iql import IQLConfig, iql
from agents.types import Continuous
from tests.agents import tools


@functools.cache
def make(**options):
    config = IQLConfig(**{"hidden": (4,), "actor_updates": 2} | options)
    agent = tools.compiled(iql(config, Continuous(2)))
    state, other = (tools.start(agent, tools.batch(), jax.random.key(seed)) for seed in range(2))
    actor = state.actor._replace(log_std=np.float32([-0.5, 0.25]))
    return agent, state._replace(actor=actor, target_critics=other.critics)


OPTIONS = {
    "expectile": 0.8, "temperature": 2.0, "largest_weight": 0.5, "tau": 0.25,
    "value_learning_rate": 1e-2,
}  # fmt: skip


def test_update_agrees_with_numpy():
    agent, state = make(**OPTIONS)
    weights = np.linspace(0.2, 1, 8, dtype=np.float32)
    sample = tools.batch(weights=weights)
    after, info = agent.update(state, sample, tools.KEY)
    before, new, t = tools.in_double((state, after, sample.transition))
    q = lambda critics: np.stack(
        [tools.perceptron(p, tools.joined(t.obs, t.action))[:, 0] for p in critics]
    )
    v = lambda params, obs: tools.perceptron(params, obs)[:, 0]
    least = q(before.target_critics).min(axis=0)

    def value_loss(params):
        u = least - v(params, t.obs)
        return (weights * np.where(u < 0, 0.2, 0.8) * u**2).mean()

    # Actor and critics use the updated value network.
    advantage = least - v(new.value, t.obs)
    weight = np.minimum(np.exp(2 * advantage), 0.5)
    assert 0 < np.mean(weight == 0.5) < 1
    target = t.reward + t.discount * v(new.value, t.next_obs)

    def actor_loss(actor):
        z = (t.action - np.tanh(tools.perceptron(actor.mean, t.obs))) / np.exp(actor.log_std)
        log = -0.5 * z**2 - actor.log_std - 0.5 * np.log(2 * np.pi)
        return -(weight * log.sum(axis=1)).mean()

    def critic_loss(critics):
        return (weights * 0.5 * np.square(target - q(critics)).sum(axis=0)).mean()

    td = target - q(before.critics)
    np.testing.assert_allclose(info.feedback["td_error"], tools.larger(td), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(info.metrics["advantage"], advantage.mean(), rtol=1e-4, atol=1e-6)
    for name, loss, params, opt_state in (
        ("value_loss", value_loss, before.value, after.value_opt_state),
        ("actor_loss", actor_loss, before.actor, after.actor_opt_state),
        ("loss", critic_loss, before.critics, after.critic_opt_state),
    ):
        np.testing.assert_allclose(info.metrics[name], loss(params), rtol=1e-4)
        tools.assert_gradient(opt_state, loss, params)
    tools.assert_close(after.target_critics, tools.mixed(0.25, after.critics, state.target_critics))


def test_actor_learning_rate_may_decay():
    """A cosine over two updates: 3e-4, then half of it, then 0."""
    agent, state = make(**OPTIONS)
    steps = []
    for turn in range(3):
        after, _ = agent.update(state, tools.batch(weights=np.ones(8)), jax.random.key(turn))
        steps.append(np.abs(np.subtract(after.actor.log_std, state.actor.log_std)).max())
        state = after
    np.testing.assert_allclose(steps[0], 3e-4, rtol=1e-3)
    assert steps[1] < 0.6 * steps[0] and steps[2] == 0


def test_policy_is_a_clipped_gaussian():
    agent, state = make(**OPTIONS)
    obs = np.zeros((20_000, 3), np.float32)
    action, extras = agent.act(state, obs, tools.KEY)
    mean = agent.greedy(state, obs)[0]
    np.testing.assert_allclose(mean, np.tanh(tools.perceptron(state.actor.mean, obs[0])), rtol=1e-5)
    assert extras is None and np.abs(action).max() == 1
    action = np.sort(np.asarray(action), axis=0)
    np.testing.assert_allclose(action[len(obs) // 2], mean, atol=0.03)
    # One std below the mean is the 15.9th percentile, which is not clipped.
    expected = np.maximum(mean - np.exp(state.actor.log_std), -1)
    np.testing.assert_allclose(action[int(0.1587 * len(obs))], expected, atol=0.03)
