"""PPO: its loss by hand, an update in NumPy, its replay of the newest steps."""

import functools

import jax
import numpy as np
import pytest

from agents.gaussian import Behaviour
from agents.ppo import PPOConfig, clipped_loss, ppo
from agents.types import Continuous
from jaxreplay import Replay
from jaxreplay.methods import latest
from jaxreplay.methods.windows import Aux
from tests.agents import tools

T, E, GAMMA = 6, 2, 0.9


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.0, 2.0, -2.0), (1.5, 2.0, -2.4), (0.5, 2.0, -1.0), (1.5, -2.0, 3.0), (0.5, -2.0, 1.6)],
)
def test_clipped_loss_worked_by_hand(ratio, advantage, expected):
    """The ratio is clipped to 0.8 and 1.2 where that lowers the gain: -1.2 * 2, and 0.8 * 2."""
    loss, grad = jax.jit(jax.value_and_grad(clipped_loss))(
        np.log(np.float32(ratio)), np.float32(advantage), 0.2
    )
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    gains = (ratio - 1) * advantage > 0 and abs(ratio - 1) > 0.2
    assert (grad == 0) == gains


@functools.cache
def make(**options):
    agent = tools.compiled(ppo(PPOConfig(hidden=(4,), gae=0.8, **options), Continuous(2)))
    return agent, tools.start(agent, tools.batch(T * E))


def rollout(agent, state, terminal=(False, False)):
    """Return steps `[T * E]` in the order of time, with the actions of the agent.

    Episodes have four steps; they terminate in lanes with `terminal`, and are truncated elsewhere.
    """
    sample, row = tools.batch(T * E), np.arange(T * E)
    action, behaviour = agent.act(state, sample.transition.obs, tools.KEY)
    last = row // E % 4 == 3
    discount = np.where(last & np.tile(terminal, T), 0.0, GAMMA)
    return tools.change(
        sample, action=np.asarray(action), extras=Behaviour(*map(np.asarray, behaviour)),
        reward=np.float32(row), last=last, discount=np.float32(discount),
    )._replace(aux=Aux(row.reshape(T, E)))  # fmt: skip


def generalised(t, values, next_values, decay):
    """Return advantages `[T * E]`: sums of discounted TD errors up to the end of the episode."""
    td = (t.reward + t.discount * next_values - values).reshape(T, E)
    last, result = t.last.reshape(T, E), np.zeros((T, E))
    for row in range(T):
        for lane in range(E):
            weight = 1.0
            for later in range(row, T):
                result[row, lane] += weight * td[later, lane]
                weight *= decay * GAMMA
                if last[later, lane]:
                    break
    return result.ravel()


def value(params, obs):
    return tools.perceptron(params, obs, np.tanh)[:, 0]


@pytest.mark.parametrize("terminal", [(False, False), (True, False)], ids=["cut", "ends and cut"])
def test_update_uses_advantages_along_each_environment(terminal):
    """A single step at ratio 1, without clipping, follows advantages times log probabilities.

    A terminated episode has no bootstrap value; a truncated one has the value of its true last
    observation.
    """
    agent, state = make(epochs=1, minibatch=T * E)
    sample = rollout(agent, state, terminal)
    after, info = agent.update(state, sample, tools.KEY)
    networks, t = tools.in_double((state.networks, sample.transition))
    values, next_values = (value(networks.value, obs) for obs in (t.obs, t.next_obs))
    expected = generalised(t, values, next_values, 0.8)
    np.testing.assert_allclose(info.feedback["td_error"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(info.feedback["q_value"], values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(info.feedback["target"], expected + values, rtol=1e-4, atol=1e-4)
    scaled = (expected - expected.mean()) / expected.std()

    def loss(networks):
        p = networks.policy["params"]
        mean = tools.perceptron({"params": p["Actor_0"]}, t.obs, np.tanh)
        log_prob = tools.log_density(t.action, mean, np.exp(p["log_variance"]))
        error = value(networks.value, t.obs) - (expected + values)
        return (0.5 * np.square(error) - scaled * log_prob).mean()

    grads = tools.numerical_gradient(loss, networks)
    for name in ("policy", "value"):
        found = getattr(tools.gradient_of(after.opt_state.inner_states[name]), name)
        tools.assert_close(found, getattr(grads, name), rtol=2e-3, atol=2e-4)


def test_epochs_and_minibatches_take_further_steps():
    """Four steps of two epochs with two minibatches each, in an order that the key decides."""
    agent, state = make(epochs=2, minibatch=T * E // 2, actor_learning_rate=1e-2)
    sample = rollout(agent, state)
    after, info = agent.update(state, sample, tools.KEY)
    tools.assert_same(after, agent.update(state, sample, tools.KEY)[0])
    assert tools.differs(after, agent.update(state, sample, jax.random.key(1))[0])
    counts = [
        leaf for path, leaf in jax.tree_util.tree_leaves_with_path(after.opt_state)
        if jax.tree_util.keystr(path).endswith(".count")
    ]  # fmt: skip
    assert counts and all(count == 4 for count in counts)
    assert info.metrics["kl"] > 0


@pytest.mark.parametrize("rows", [T, T + 1, 3 * T - 2])
def test_replay_returns_the_newest_steps_in_order(rows):
    replay = Replay(latest.sampler(), capacity=T * E, batch_size=T * E, num_envs=E)
    run = tools.compiled(replay, ("add", "sample", "probability"))
    steps = tools.change(
        tools.batch(rows * E), reward=np.arange(rows * E, dtype=np.float32)
    ).transition
    held = replay.init(tools.KEY, jax.tree.map(lambda x: x[0], steps))
    for row in range(rows):
        held = run.add(held, jax.tree.map(lambda x, n=row: x[n * E : n * E + E], steps))
    found = run.sample(held, tools.KEY)
    np.testing.assert_array_equal(found.transition.reward, np.arange(rows * E)[-T * E :])
    assert found.aux.slots.shape == (T, E)
    np.testing.assert_allclose(run.probability(held, np.arange(T * E)), 1 / (T * E))
