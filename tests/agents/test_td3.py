"""TD3: one update in NumPy, noise, delayed updates, and behaviour cloning."""

import functools

import jax
import numpy as np
import pytest

from agents.td3 import TD3Config, td3
from agents.types import Continuous
from tests.agents import tools

KEY = jax.random.key(1)


@functools.cache
def make(**options):
    """Return an agent, and a state whose target networks differ from the online networks."""
    agent = tools.compiled(td3(TD3Config(**{"hidden": (4,), "tau": 0.1} | options), Continuous(2)))
    state, other = (tools.start(agent, tools.batch(), jax.random.key(seed)) for seed in range(2))
    targets = {"target_actor": other.policy.actor, "target_critics": other.critics}
    return agent, state._replace(policy=state.policy._replace(**targets))


@pytest.mark.parametrize("alpha", [None, 2.5])
def test_update_agrees_with_numpy(alpha):
    agent, state = make(target_noise=0.0, bc_alpha=alpha)
    weights = np.linspace(0.5, 2, 8, dtype=np.float32)
    sample = tools.batch(weights=weights)
    state = state._replace(updates=np.int32(1))  # the actor learns in every second update
    after, info = agent.update(state, sample, KEY)
    (policy, critics, *_), new, t = tools.in_double((state, after.critics, sample.transition))

    act = lambda params, obs: np.tanh(tools.perceptron(params, obs))
    value = lambda params, obs, action: tools.perceptron(params, tools.joined(obs, action))[:, 0]
    next_action = act(policy.target_actor, t.next_obs)
    next_q = [value(params, t.next_obs, next_action) for params in policy.target_critics]
    target = t.reward + t.discount * np.min(next_q, axis=0)
    errors = lambda critics: target - np.stack([value(p, t.obs, t.action) for p in critics])
    td = errors(critics)
    np.testing.assert_allclose(info.feedback["td_error"], tools.larger(td), atol=1e-5)
    np.testing.assert_allclose(info.feedback["q_value"], (target - td).min(axis=0), atol=1e-5)

    def critic_loss(critics):
        return (weights * 0.5 * np.square(errors(critics)).sum(axis=0)).mean()

    def actor_loss(actor):
        action = act(actor, t.obs)
        q = value(new[0], t.obs, action)
        if alpha is None:
            return -q.mean()
        return -alpha * q.mean() / scale + np.square(action - t.action).mean()

    scale = np.abs(value(new[0], t.obs, act(policy.actor, t.obs))).mean()
    np.testing.assert_allclose(info.metrics["loss"], critic_loss(critics), rtol=1e-5)
    np.testing.assert_allclose(info.metrics["actor_loss"], actor_loss(policy.actor), rtol=1e-4)
    tools.assert_gradient(after.critic_opt_state, critic_loss, critics)
    tools.assert_gradient(after.policy.opt_state, actor_loss, policy.actor)
    targets = after.policy.target_actor, after.policy.target_critics
    old = state.policy.target_actor, state.policy.target_critics
    tools.assert_close(
        targets, tools.mixed(0.1, (after.policy.actor, after.critics), old), atol=1e-6
    )


def test_actor_and_targets_change_every_second_update():
    agent, state = make(target_noise=0.0)  # the program above
    for count in range(1, 5):
        before = state
        state, _ = agent.update(state, tools.batch(weights=np.ones(8)), jax.random.key(count))
        assert int(state.updates) == count
        assert tools.differs(state.critics, before.critics)
        if count % 2:
            tools.assert_same(state.policy, before.policy)
        for part in ("actor", "target_actor", "target_critics"):
            new, old = getattr(state.policy, part), getattr(before.policy, part)
            assert tools.differs(new, old) == (count % 2 == 0)


def test_target_noise_is_clipped():
    """With a clip of nearly 0, TD errors barely depend on the noise."""
    t = tools.batch().transition

    def spread(agent, state):
        """Return the largest difference of TD errors between two keys."""
        td = [agent.feedback(state, t, jax.random.key(i))["td_error"] for i in range(2)]
        return np.abs(np.subtract(*td))[t.discount > 0].max()

    assert 0 < spread(*make(target_noise=5.0, target_noise_clip=1e-6)) < 1e-5
    assert spread(*make(target_noise=5.0)) > 1e-3


def test_exploration_noise_has_the_given_std():
    agent, state = make(exploration_noise=0.1)
    obs = np.zeros((20_000, 3), np.float32)
    action, extras = agent.act(state, obs, KEY)
    assert extras is None and np.abs(action).max() <= 1
    noise = np.subtract(action, agent.greedy(state, obs))
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.005)
    np.testing.assert_allclose(noise.std(0), 0.1, atol=0.005)
    loud, _ = make(exploration_noise=10.0)
    assert np.abs(loud.act(state, obs, KEY)[0]).max() == 1


def test_policy_delay_remains_a_cond_under_vmap():
    """With an unbatched clock, vmapped seeds skip the actor's update instead of masking it."""
    agent, state = td3(TD3Config(hidden=(4,)), Continuous(2)), make()[1]
    axes = jax.tree.map(lambda _: 0, state)._replace(updates=None)
    seeds = jax.tree.map(lambda x: np.stack([x, x]), state)._replace(updates=state.updates)
    many = jax.vmap(agent.update, in_axes=(axes, None, None))
    equations = jax.make_jaxpr(many)(seeds, tools.batch(), KEY).eqns
    assert "cond" in {equation.primitive.name for equation in equations}
