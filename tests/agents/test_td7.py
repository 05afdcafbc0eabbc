"""TD7: targets, losses and gradients against NumPy, and updates of its target networks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.sale import avg_l1_norm
from agents.td7 import TD7Config, td7, widen
from agents.types import Continuous
from experiments import environments
from experiments.training.config import LoopConfig
from experiments.training.loop import make_train
from jaxreplay import Replay, objectives
from jaxreplay.contrib import relo
from jaxreplay.methods import lap
from tests.agents import tools

KEY = jax.random.key(1)

SMALL = {"hidden": (4,), "embedding": 3, "target_noise": 0.0, "policy_delay": 2, "target_every": 3}


def make(objective=None):
    return tools.compiled(td7(TD7Config(**SMALL), Continuous(2), objective))


@functools.cache
def shared():
    """Return an agent, and a state with distinct networks and bounds that clip some targets."""
    agent = make()
    state = tools.start(agent, tools.batch())
    times = lambda tree, x: jax.tree.map(lambda leaf: leaf * np.float32(x), tree)
    return agent, state._replace(
        targets=times(state.targets, 1.5),
        encoder=times(state.encoder, 0.7),
        bounds=np.float32([-1.1, -0.5]),
        seen=np.float32([-0.3, 0.2]),
    )


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def normal(x):
    return x / np.abs(x).mean(axis=1, keepdims=True)


def wide(x, params):
    layer = params["params"]["Dense_0"]
    return normal(x @ layer["kernel"] + layer["bias"])


def pair(encoder, z, action):
    return tools.perceptron(encoder.pair, tools.joined(z, action), elu)


def encoded(encoder, obs):
    return normal(tools.perceptron(encoder.state, obs, elu))


def act(actor, obs, z):
    return np.tanh(tools.perceptron(actor, tools.joined(wide(obs, actor), z)))


def values(critics, encoder, obs, action):
    """Return Q-values `[2, B]` of critics with the embeddings of an encoder."""
    z = encoded(encoder, obs)

    def value(p):
        parts = wide(tools.joined(obs, action), p), pair(encoder, z, action), z
        return tools.perceptron(p["params"]["ELUNetwork_0"], tools.joined(*parts), elu)[:, 0]

    return np.stack([value(p) for p in critics])


def huber(td):
    return np.where(np.abs(td) <= 1, 0.5 * td**2, np.abs(td) - 0.5)


def targets(state, t):
    networks = state.targets
    z = encoded(networks.encoder, t.next_obs)
    action = act(networks.actor, t.next_obs, z)
    q = values(networks.critics, networks.encoder, t.next_obs, action).min(axis=0)
    return q, t.reward + t.discount * np.clip(q, *state.bounds)


def test_update_agrees_with_numpy():
    weights = np.float32([0.5, 1, 2, 0, 1, 1, 0.25, 1])
    sample, (agent, state) = tools.batch(weights=weights), shared()
    state = state._replace(updates=np.int32(1))
    after, info = agent.update(state, sample, KEY)
    before, new, t = tools.in_double((state, after, sample.transition))
    networks, fixed = before.networks, before.networks.encoder

    q_next, target = targets(before, t)
    clipped = (q_next < state.bounds[0]) | (q_next > state.bounds[1])
    assert clipped.any() and not clipped.all()
    td = target - values(networks.critics, fixed, t.obs, t.action)
    np.testing.assert_allclose(info.feedback["td_error"], tools.larger(td), atol=1e-5)
    np.testing.assert_allclose(info.feedback["target"], target, atol=1e-5)
    learned = target[weights > 0]
    seen = [min(-0.3, learned.min()), max(0.2, learned.max())]
    np.testing.assert_allclose(after.seen, seen, rtol=1e-5)

    def critic_loss(critics):
        errors = target - values(critics, fixed, t.obs, t.action)
        return (weights * huber(errors).sum(axis=0)).mean()

    following = encoded(before.encoder, t.next_obs)  # no gradient

    def encoder_loss(encoder):
        predicted = pair(encoder, encoded(encoder, t.obs), t.action)
        return (weights * ((predicted - following) ** 2).mean(axis=1)).mean()

    def actor_loss(actor):
        action = act(actor, t.obs, encoded(fixed, t.obs))
        return -values(new.networks.critics, fixed, t.obs, action).mean()

    for name, loss, params, opt_state in (
        ("loss", critic_loss, networks.critics, after.critic_opt_state),
        ("encoder_loss", encoder_loss, before.encoder, after.encoder_opt_state),
        ("actor_loss", actor_loss, networks.actor, after.actor_opt_state),
    ):
        np.testing.assert_allclose(info.metrics[name], loss(params), rtol=1e-4)
        tools.assert_gradient(opt_state, loss, params)


def test_networks_are_copied_every_target_every_updates():
    agent, state = shared()
    for count in range(1, 7):
        before = state
        state, _ = agent.update(state, tools.batch(weights=np.ones(8)), jax.random.key(count))
        assert int(state.updates) == count
        assert tools.differs(state.encoder, before.encoder)
        assert tools.differs(state.networks.critics, before.networks.critics)
        assert tools.differs(state.networks.actor, before.networks.actor) == (count % 2 == 0)
        if count % 3 == 0:
            tools.assert_same(state.networks.encoder, state.encoder)
            tools.assert_same(state.targets.encoder, before.networks.encoder)
            tools.assert_same(state.targets[:2], state.networks[:2])
            tools.assert_same(state.bounds, state.seen)
        else:
            tools.assert_same(state.networks.encoder, before.networks.encoder)
            tools.assert_same((state.targets, state.bounds), (before.targets, before.bounds))


def test_avg_l1_norm_worked_by_hand():
    x = np.float32([[1, -2, 3, 0], [0, 0, 0, 0]])
    expected = [[0.6666666667, -1.3333333333, 2, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(avg_l1_norm(x), expected, rtol=1e-6)


def test_targets_are_clipped_to_the_range_before_the_latest_copy():
    """With constant target critics; until the first copy, every target is the reward."""
    (agent, state), sample, ones = shared(), tools.batch(weights=np.ones(8)), np.ones(8, np.float32)
    state = state._replace(bounds=np.zeros(2, np.float32), seen=np.float32([np.inf, -np.inf]))
    found = []
    for turn, (q, reward) in enumerate(((5, 1), (-2, 0.5), (9, 1), (9, 1))):
        kept = state.targets._replace(critics=constant(state.targets.critics, q))
        moved = tools.change(sample, reward=reward * ones, discount=np.float32(0.99) * ones)
        state = state._replace(targets=kept, updates=np.int32(1 + turn % 2))  # copies in turn 2, 4
        state, info = agent.update(state, moved, KEY)
        found.append((info.feedback["target"][0], *state.bounds))
    expected = [(1, 0, 0), (0.5, 0.5, 1), (1.99, 0.5, 1), (1.99, 0.5, 1.99)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def constant(critics, q):
    """Return critics with the Q-value `q` for every input."""

    def last(path, leaf):
        name = jax.tree_util.keystr(path)
        if "ELUNetwork_0" not in name or "Dense_1" not in name:
            return leaf
        return np.full_like(leaf, q if "bias" in name else 0)

    return jax.tree_util.tree_map_with_path(last, critics)


def test_bounds_ignore_targets_that_are_unweighted_or_not_finite():
    target = jnp.float32([5, -0.5, -3, jnp.nan, jnp.inf])
    seen = widen(jnp.float32([-1, 1]), target, jnp.array([False, True, True, True, True]))
    np.testing.assert_array_equal(seen, [-3, 1])


def test_reducible_loss_uses_the_encoder_of_the_target_critics():
    agent = make(relo.method().objective._replace(error=objectives.huber()))
    sample, (_, state) = tools.batch(), shared()
    found = agent.feedback(state, sample.transition, KEY)["reducible_loss"]
    before, t = tools.in_double((state, sample.transition))
    _, target = targets(before, t)
    online, lagged = (
        huber(target - values(own.critics, own.encoder, t.obs, t.action)).mean(axis=0)
        for own in (before.networks, before.targets)
    )
    np.testing.assert_allclose(found, online - lagged, atol=1e-5)


@pytest.mark.slow
def test_pendulum_is_learned():
    """A random policy reaches about -1 200."""
    task = environments.make("gymnax/Pendulum-v1")
    method = lap.method(lap.LAPConfig(maximum="stored"))
    agent = td7(TD7Config(hidden=(64, 64), embedding=64), task.action_space, method.objective)
    replay = Replay(method.sampler, capacity=10_000, batch_size=128)
    config = LoopConfig(steps=5_000, warmup=1_000, eval_every=2_500, inspect=0)
    metrics = jax.jit(make_train(task, agent, replay, config))(jax.random.key(0))[1]
    assert metrics["eval_return"].max() > -250
