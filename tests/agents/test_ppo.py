"""PPO's loss, targets and on-policy replay."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.ppo import PPOConfig, clipped_loss, ppo
from agents.types import Continuous
from experiments.config import LoopConfig, check
from jaxreplay import Transition, make_replay
from jaxreplay.methods import latest

T, E, OBS = 6, 2, 3
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.0, 2.0, -2.0), (1.5, 2.0, -2.4), (0.5, 2.0, -1.0), (1.5, -2.0, 3.0), (0.5, -2.0, 1.6)],
)
def test_clipped_loss_worked_by_hand(ratio, advantage, expected):
    loss = clipped_loss(jnp.log(ratio), jnp.asarray(advantage), 0.2)
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    grad = jax.grad(clipped_loss)(jnp.log(ratio), jnp.asarray(advantage), 0.2)
    gains = (ratio - 1) * advantage > 0 and abs(ratio - 1) > 0.2
    assert (grad == 0) == gains


def filled(agent, state, rows=T):
    """A replay of `rows` rows of which it holds the newest T; rewards number the steps."""
    replay = make_replay(latest.sampler(), capacity=T * E, batch_size=T * E, num_envs=E)
    obs = jax.random.normal(KEY, (rows + 1, E, OBS))
    held = None
    for row in range(rows):
        action, extras = agent.act(state, obs[row], jax.random.fold_in(KEY, row))
        reward = (row * E + jnp.arange(E)).astype(jnp.float32)
        last = jnp.full(E, row % 4 == 3)
        t = Transition(
            obs[row],
            action,
            reward,
            jnp.full(E, 0.9),
            obs[row + 1],
            jnp.roll(last, 0),
            last,
            extras,
        )
        if held is None:
            held = replay.init(KEY, jax.tree.map(lambda x: x[0], t))
        held = replay.add(held, t)
    return replay, held


def make(**options):
    agent = ppo(PPOConfig(hidden=(8,), **options), Continuous(2))
    return agent, agent.init(KEY, jnp.zeros(OBS), jnp.zeros(2))


@pytest.mark.parametrize("rows", [T, T + 1, 3 * T - 2])
def test_replay_returns_the_newest_steps_in_order(rows):
    replay, held = filled(*make(), rows)
    held, batch = replay.sample(held, KEY)
    expected = np.arange(rows * E)[-T * E :]
    np.testing.assert_array_equal(batch.transition.reward, expected)
    assert batch.notes.slots.shape == (T, E)
    np.testing.assert_allclose(replay.probability(held, jnp.arange(T * E)), 1 / (T * E))


def test_advantages_run_along_each_environment():
    agent, state = make(gae=0.8)
    replay, held = filled(agent, state)
    _, batch = replay.sample(held, KEY)
    t = batch.transition
    _, info = agent.update(state, batch, KEY)
    before = agent.assess(state, t, KEY)
    td = np.asarray(before["td_error"]).reshape(T, E)
    expected, after = np.zeros((T, E)), np.zeros(E)
    for row in reversed(range(T)):
        over = np.asarray(t.last).reshape(T, E)[row] | (row == T - 1)
        expected[row] = after = td[row] + np.where(over, 0, 0.8 * 0.9 * after)
    np.testing.assert_allclose(info.feedback["td_error"], expected.ravel(), rtol=1e-4, atol=1e-4)
    values = np.asarray(before["q_value"])
    target = np.asarray(info.feedback["target"])
    np.testing.assert_allclose(target, expected.ravel() + values, rtol=1e-4)


def test_first_gradient_step_is_the_policy_gradient():
    """At ratio 1 nothing is clipped: the gradient is that of advantage times log probability."""
    agent, state = make(epochs=1, minibatch=T * E)
    replay, held = filled(agent, state)
    _, batch = replay.sample(held, KEY)
    after, info = agent.update(state, batch, KEY)
    advantage = info.feedback["td_error"]
    advantage = (advantage - advantage.mean()) / advantage.std()

    def surrogate(shift):
        mean, variance = batch.transition.extras.mean + shift, batch.transition.extras.variance
        squares = jnp.square(batch.transition.action - mean) / variance
        return (advantage * -0.5 * squares.sum(axis=1)).mean()

    moments = optax.tree.get(after.opt_state.inner_states["policy"], "mu")
    bias = moments.policy["params"]["Actor_0"]["MLP_0"]["Dense_1"]["bias"]
    np.testing.assert_allclose(bias, -0.1 * jax.grad(surrogate)(jnp.zeros(2)), rtol=1e-3, atol=1e-6)


def test_update_moves_towards_better_actions_and_is_pure():
    agent, state = make(actor_learning_rate=1e-2)
    replay, held = filled(agent, state)
    _, batch = replay.sample(held, KEY)
    update = jax.jit(agent.update)
    after, info = update(state, batch, KEY)
    jax.tree.map(np.testing.assert_array_equal, after, update(state, batch, KEY)[0])
    assert float(info.metrics["kl"]) > 0
    for value in info.metrics.values():
        assert value.shape == () and np.isfinite(value)


def test_loops_that_do_not_renew_the_data_are_refused():
    replay = make_replay(latest.sampler(), capacity=64, batch_size=64, num_envs=2)
    check(LoopConfig(warmup=64, learn_every=32), replay)
    for bad in ({"learn_every": 16}, {"learn_every": 32, "updates": 2}):
        with pytest.raises(ValueError, match="one update of 64 transitions, all new"):
            check(LoopConfig(warmup=64, **bad), replay)


@pytest.mark.parametrize(
    ("option", "value"),
    [("clip", 0.0), ("gae", 1.5), ("epochs", 0), ("minibatch", 0), ("initial_variance", -1.0)],
)
def test_bad_options_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} is"):
        PPOConfig(**{option: value})
