"""PPO's loss, targets and on-policy replay."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.ppo import PPOConfig, clipped_loss, ppo
from agents.types import Continuous
from experiments.training.config import LoopConfig, check
from jaxreplay import Replay, Transition
from jaxreplay.methods import latest
from tests.refusals import refused

T, E, OBS, GAMMA = 6, 2, 3, 0.9
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.0, 2.0, -2.0), (1.5, 2.0, -2.4), (0.5, 2.0, -1.0), (1.5, -2.0, 3.0), (0.5, -2.0, 1.6)],
)
def test_clipped_loss_worked_by_hand(ratio, advantage, expected):
    loss, grad = jax.jit(jax.value_and_grad(clipped_loss))(
        np.log(np.float32(ratio)), np.float32(advantage), 0.2
    )
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    gains = (ratio - 1) * advantage > 0 and abs(ratio - 1) > 0.2
    assert (grad == 0) == gains


def filled(agent, state, rows=T, terminal=(False, False)):
    """Return a replay after `rows` rows, of which it keeps the newest T; rewards count steps.

    Episodes have four steps; they terminate in lanes with `terminal`, and are truncated elsewhere.
    """
    replay = compiled_replay()
    obs, next_obs = np.random.default_rng(0).normal(size=(2, rows, E, OBS)).astype(np.float32)
    held = None
    for row in range(rows):
        action, extras = agent.act(state, obs[row], jax.random.key(row))
        reward = np.float32(row * E + np.arange(E))
        first, last = np.full(E, row % 4 == 0), np.full(E, row % 4 == 3)
        discount = np.float32(np.where(last & np.array(terminal), 0.0, GAMMA))
        t = Transition(obs[row], action, reward, discount, next_obs[row], first, last, extras)
        if held is None:
            held = replay.init(KEY, jax.tree.map(lambda x: np.asarray(x)[0], t))
        held = replay.add(held, t)
    return replay, held


def compiled(functions, *names):
    """Return the named functions of an agent or a replay, compiled."""
    return {name: jax.jit(getattr(functions, name)) for name in names}


@functools.cache
def compiled_replay():
    replay = Replay(latest.sampler(), capacity=T * E, batch_size=T * E, num_envs=E)
    return SimpleNamespace(**compiled(replay, "init", "add", "sample", "probability"))


@functools.cache
def make(**options):
    agent = ppo(PPOConfig(hidden=(8,), **options), Continuous(2))
    agent = agent._replace(**compiled(agent, "init", "act", "update", "feedback"))
    return agent, agent.init(KEY, np.zeros(OBS, np.float32), np.zeros(2, np.float32))


@pytest.mark.parametrize("rows", [T, T + 1, 3 * T - 2])
def test_replay_returns_the_newest_steps_in_order(rows):
    replay, held = filled(*make(), rows)
    batch = replay.sample(held, KEY)
    expected = np.arange(rows * E)[-T * E :]
    np.testing.assert_array_equal(batch.transition.reward, expected)
    assert batch.aux.slots.shape == (T, E)
    np.testing.assert_allclose(replay.probability(held, np.arange(T * E)), 1 / (T * E))


def generalised(t, values, next_values, decay):
    """Return advantages `[T, E]`: sums of discounted TD errors up to the end of the episode."""
    grid = lambda x: np.asarray(x).reshape(T, E)
    reward, discount, last = grid(t.reward), grid(t.discount), grid(t.last)
    td = reward + discount * grid(next_values) - grid(values)
    result = np.zeros((T, E))
    for row in range(T):
        for lane in range(E):
            weight = 1.0
            for later in range(row, T):
                result[row, lane] += weight * td[later, lane]
                weight *= decay * GAMMA
                if last[later, lane]:
                    break
    return result


@pytest.mark.parametrize("terminal", [(False, False), (True, False)], ids=["cut", "ends and cut"])
def test_first_gradient_step_uses_advantages_along_each_environment(terminal):
    """At ratio 1, without clipping, it is the gradient of advantage times log probability.

    A terminated episode has no bootstrap value; a truncated one has the value of its true last
    observation.
    """
    agent, state = make(epochs=1, minibatch=T * E, gae=0.8)
    replay, held = filled(agent, state, terminal=terminal)
    batch = replay.sample(held, KEY)
    t = batch.transition
    values, next_values = (
        np.asarray(agent.feedback(state, t._replace(obs=obs), KEY)["q_value"])
        for obs in (t.obs, t.next_obs)
    )
    expected = generalised(t, values, next_values, 0.8).ravel()
    after, info = agent.update(state, batch, KEY)
    np.testing.assert_allclose(info.feedback["td_error"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(info.feedback["target"], expected + values, rtol=1e-4, atol=1e-4)

    scaled = (expected - expected.mean()) / expected.std()

    def surrogate(shift):
        squares = jnp.square(t.action - t.extras.mean - shift) / t.extras.variance
        return (scaled * -0.5 * squares.sum(axis=1)).mean()

    gradient = np.asarray(jax.jit(jax.grad(surrogate))(np.zeros(2, np.float32)))
    moments = optax.tree.get(after.opt_state.inner_states["policy"], "mu")
    bias = moments.policy["params"]["Actor_0"]["MLP_0"]["Dense_1"]["bias"]
    np.testing.assert_allclose(bias, -0.1 * gradient, rtol=1e-3, atol=1e-6)
    moments = optax.tree.get(after.opt_state.inner_states["value"], "mu")
    bias = moments.value["params"]["Dense_1"]["bias"]
    np.testing.assert_allclose(bias, [-0.1 * expected.mean()], rtol=1e-3)


def test_update_is_pure_and_changes_the_policy():
    agent, state = make(actor_learning_rate=1e-2)
    replay, held = filled(agent, state)
    batch = replay.sample(held, KEY)
    after, info = agent.update(state, batch, KEY)
    jax.tree.map(np.testing.assert_array_equal, after, agent.update(state, batch, KEY)[0])
    assert float(info.metrics["kl"]) > 0
    for value in info.metrics.values():
        assert value.shape == () and np.isfinite(value)


def test_loops_that_reuse_old_rollouts_are_refused():
    replay = Replay(latest.sampler(), capacity=64, batch_size=64, num_envs=2)
    check(LoopConfig(warmup=64, learn_every=32), replay)
    for bad in ({"learn_every": 16}, {"learn_every": 32, "updates": 2}):
        with refused("64", "updates", "learn_every", "num_envs"):
            check(LoopConfig(warmup=64, **bad), replay)


@pytest.mark.parametrize(
    ("option", "value"),
    [("clip", 0.0), ("gae", 1.5), ("epochs", 0), ("minibatch", 0), ("initial_variance", -1.0)],
)
def test_bad_options_are_refused(option, value):
    with refused(option, value):
        PPOConfig(**{option: value})
