"""DQN: targets and updates of a table worked by hand, Munchausen targets, exploration."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.dqn import DQNConfig, dqn, munchausen_target
from agents.types import Discrete
from jaxreplay.contrib import eper
from tests.agents import tools
from tests.refusals import refused

Q_ONLINE = np.float32([[1.0, 2.0], [0.5, 3.0]])
Q_TARGET = np.float32([[1.0, 1.0], [2.0, -1.0]])
PAPER = DQNConfig(munchausen=True)
target_ = jax.jit(munchausen_target, static_argnums=5)


def one_step(action, reward, discount, **more):
    """Return a transition from the first state to the second."""
    return tools.sample_of(
        tools.STATES[:1], np.int32([action]), [reward], [discount], tools.STATES[1:], **more
    )


@functools.cache
def tabular(**options):
    """Return an agent for two states, and a state with the values above."""
    agent = tools.compiled(dqn(DQNConfig(hidden=(2,), **options), Discrete(2)))
    state = tools.start(agent, one_step(0, 0, 0))
    return agent, state._replace(params=tools.table(Q_ONLINE), target_params=tools.table(Q_TARGET))


def descended(after, state):
    """Return what the update subtracted from the biases of the outputs."""
    return tools.last_layer(state.params) - tools.last_layer(after.params)


@pytest.mark.parametrize(
    ("double", "discount", "target"),
    [
        (True, 0.9, 0.1),  # 1 + 0.9 * -1: action 1 is best by the online network
        (False, 0.9, 2.8),  # 1 + 0.9 * 2: the largest of the target network
        (True, 0.0, 1.0),
    ],
)
def test_feedback_of_a_table_worked_by_hand(double, discount, target):
    agent, state = tabular(double=double)
    _, info = agent.update(state, one_step(0, 1, discount), tools.KEY)
    np.testing.assert_allclose(info.feedback["target"], [target], atol=1e-6)
    np.testing.assert_allclose(info.feedback["td_error"], [target - 1], atol=1e-6)
    np.testing.assert_allclose(info.feedback["q_value"], [1.0])


# Adam with a huge epsilon is gradient descent with step size 1 / epsilon.
DESCENT = {"learning_rate": 1.0, "adam_eps": 1e6}


def test_loss_and_gradient_are_those_of_the_weighted_huber_loss():
    """Errors 0.5 and 3 have losses 0.5^2 / 2 and 3 - 1/2, and slopes -0.5 and -1."""
    agent, state = tabular(**DESCENT, max_grad_norm=0.0)
    sample = tools.sample_of(
        tools.STATES, np.int32([0, 1]), [1.5, 6], [0, 0], tools.STATES, [1.0, 0.5]
    )
    after, info = agent.update(state, sample, tools.KEY)
    np.testing.assert_allclose(info.feedback["td_error"], [0.5, 3.0])
    np.testing.assert_allclose(info.metrics["loss"], (0.125 + 0.5 * 2.5) / 2)
    expected = np.array([-0.5, 0.5 * -1]) / 2
    np.testing.assert_allclose(1e6 * descended(after, state), expected, rtol=1e-2)


def test_gradient_norm_is_limited():
    agent, state = tabular(**DESCENT, max_grad_norm=0.01)
    after, info = agent.update(state, one_step(0, 100, 0), tools.KEY)
    assert info.metrics["grad_norm"] > 0.1  # norm before clipping
    change = jax.tree.map(lambda new, old: 1e6 * (new - old), after.params, state.params)
    moved = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(change)))
    assert 0.005 < moved <= 0.0101


def test_optimiser_may_be_rmsprop():
    """The first step of centred RMSProp is -rate g / (sqrt(decay (1 - decay)) |g| + eps)."""
    agent, state = tabular(
        optimiser="rmsprop", learning_rate=0.1, rmsprop_decay=0.75, rmsprop_eps=1e-12,
        max_grad_norm=0.0,
    )  # fmt: skip
    after, _ = agent.update(state, one_step(1, 1, 0), tools.KEY)  # from the value 2 towards 1
    expected = [0, 0.1 / np.sqrt(0.75 * 0.25)]
    np.testing.assert_allclose(descended(after, state), expected, rtol=1e-4)


# A table of Q: no hidden layers, gradient descent, and no target network.
TABLE = {"hidden": None, "optimiser": "sgd", "tau": 1.0, "max_grad_norm": 0.0}


@pytest.mark.parametrize("double", [True, False])
def test_q_learning_with_a_table_agrees_with_numpy(double):
    rng, states, actions, rows, rate = np.random.default_rng(0), 5, 3, 16, 2.0
    method = eper.method()  # also learns the expected error, with a second table
    config = DQNConfig(**TABLE, double=double, learning_rate=rate)
    agent = tools.compiled(dqn(config, Discrete(actions), method.objective))
    table = lambda params: np.float64(params["params"]["Dense_0"]["kernel"])
    state = None
    for _ in range(20):
        s, later = rng.integers(states, size=(2, rows))
        a, weights = rng.integers(actions, size=rows), rng.uniform(0.1, 1, rows)
        reward, discount = 2 * rng.normal(size=rows), rng.choice([0, 0.9], rows)
        now, then = np.eye(states, dtype=np.float32)[[s, later]]
        sample = tools.sample_of(now, np.int32(a), reward, discount, then, weights)
        state = tools.start(agent, sample) if state is None else state
        q, expected = table(state.params), table(state.expected.params)
        assert q.shape == (states, actions)
        td_error = reward + discount * q[later].max(axis=1) - q[s, a]
        after, info = agent.update(state, sample, tools.KEY)
        np.testing.assert_allclose(info.feedback["td_error"], td_error, atol=1e-5)
        np.testing.assert_allclose(info.feedback["expected_td_error"], expected[s, a], atol=1e-5)
        # Rows of one state and action add up. The Huber loss limits errors to 1.
        np.add.at(expected, (s, a), rate * 2 * (td_error - expected[s, a]) / rows)
        np.add.at(q, (s, a), rate * weights * np.clip(td_error, -1, 1) / rows)
        np.testing.assert_allclose(table(after.params), q, atol=1e-5)
        np.testing.assert_allclose(table(after.expected.params), expected, atol=1e-5)
        tools.assert_same(after.target_params, after.params)
        state = after
    for s in range(states):
        assert agent.greedy(state, np.eye(states, dtype=np.float32)[[s]])[0] == q[s].argmax()


def test_dueling_values_are_refused_without_hidden_layers():
    with refused("hidden", "dueling"):
        DQNConfig(hidden=None, dueling=True)


def test_epsilon_decreases_linearly_with_updates():
    agent, state = tabular(epsilon_start=0.8, epsilon_end=0.2, epsilon_updates=100)
    obs = np.tile(tools.STATES[0], (20_000, 1))
    assert (np.asarray(agent.greedy(state, obs)) == 1).all()  # action 0 is half of the random ones
    for updates, epsilon in [(0, 0.8), (50, 0.5), (100, 0.2), (1000, 0.2)]:
        clock = state._replace(updates=np.int32(updates))
        action, extras = agent.act(clock, obs, jax.random.key(updates))
        assert action.dtype == jnp.int32 and extras is None
        np.testing.assert_allclose(np.mean(action == np.int32(0)), epsilon / 2, atol=0.015)


def test_target_network_moves_every_target_every_updates():
    agent, state = tabular(target_every=1, tau=1.0)  # without a target network
    after, _ = agent.update(state, one_step(0, 1, 0.9), tools.KEY)
    tools.assert_same(after.target_params, after.params)
    agent, state = tabular(target_every=3, tau=0.25)
    for count in range(1, 7):
        before = state.target_params
        state, _ = agent.update(state, one_step(0, 1, 0.9), tools.KEY)
        expected = before if count % 3 else tools.mixed(0.25, state.params, before)
        tools.assert_close(state.target_params, expected, rtol=1e-6, atol=0)


# Munchausen


def reference(q_tm1, action, q_t, reward, discount, config):
    """Return the target by the paper's sums over actions (Sec. 2), in float64."""
    alpha, tau = config.munchausen_alpha, config.munchausen_tau

    def policy(q):
        weights = np.exp((q - q.max()) / tau)
        return weights / weights.sum()

    with np.errstate(divide="ignore", invalid="ignore"):
        now, after = policy(np.float64(q_tm1)), policy(np.float64(q_t))
        bonus = np.clip(tau * np.log(now[action]), config.munchausen_clip, 0)
        soft = np.where(after > 0, after * (q_t - tau * np.log(after)), 0.0).sum()
    return reward + alpha * bonus + discount * soft


@pytest.mark.parametrize(
    ("q_tm1", "action", "q_t", "discount", "expected"),
    [
        # Policies for tau 1: softmax(log 3, 0) = (3/4, 1/4), softmax(0, 0) = (1/2, 1/2).
        # 1 + 1/2 log(3/4) + 1/2 (0 + log 2)
        ([np.log(3), 0.0], 0, [0.0, 0.0], 0.5, 1 + 0.5 * np.log(0.75) + 0.5 * np.log(2)),
        ([np.log(3), 0.0], 1, [0.0, 0.0], 0.5, 1 + 0.5 * np.log(0.25) + 0.5 * np.log(2)),
        # The soft value of (log 3, 0) is log(3 + 1).
        ([0.0, 0.0], 0, [np.log(3), 0.0], 0.5, 1 - 0.5 * np.log(2) + 0.5 * np.log(4)),
        # Terminated: no value, but the bonus for the action remains.
        ([0.0, 0.0], 1, [5.0, 9.0], 0.0, 1 - 0.5 * np.log(2)),
        # log(1 / (1 + e^9)) is about -9: clipped at -2.
        ([9.0, 0.0], 1, [0.0, 0.0], 0.0, 1 + 0.5 * -2),
    ],
)
def test_munchausen_target_worked_by_hand(q_tm1, action, q_t, discount, expected):
    config = DQNConfig(munchausen_alpha=0.5, munchausen_tau=1.0, munchausen_clip=-2.0)
    args = np.float32(q_tm1), np.int32(action), np.float32(q_t), np.float32(1), np.float32(discount)
    np.testing.assert_allclose(target_(*args, config), expected, rtol=1e-6)
    np.testing.assert_allclose(reference(*args, config), expected, rtol=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.01, 1.0, 100.0]), st.sampled_from([0.0, 0.9]))
def test_munchausen_target_agrees_with_the_papers_sums(seed, scale, discount):
    rng = np.random.default_rng(seed)
    q_tm1, q_t = (scale * rng.normal(size=(2, 5))).astype(np.float32)
    args = q_tm1, np.int32(rng.integers(5)), q_t, np.float32(rng.normal()), np.float32(discount)
    expected = reference(*args, PAPER)
    # Float32 keeps differences of values only relative to their scale.
    atol = 2e-6 + 4e-7 * scale
    np.testing.assert_allclose(target_(*args, PAPER), expected, rtol=2e-5, atol=atol)
    # The bonus is at most 0; the soft value exceeds the largest Q by at most tau log n.
    bound = args[3] + discount * q_t.max()
    assert bound - 0.9 - 1e-3 <= expected <= bound + discount * 0.03 * np.log(5) + 1e-3


def test_munchausen_updates_compute_targets_from_the_target_network_alone():
    agent, sample = (
        tools.compiled(dqn(DQNConfig(hidden=(8,), munchausen=True), Discrete(3))),
        tools.batch(6, 4, 3),
    )
    state, other = (tools.start(agent, sample, jax.random.key(seed)) for seed in range(2))
    state = state._replace(target_params=other.params)
    _, info = agent.update(state, sample, tools.KEY)
    t = sample.transition
    q_tm1, q_t = (tools.perceptron(state.target_params, obs) for obs in (t.obs, t.next_obs))
    target = [reference(*row, PAPER) for row in zip(q_tm1, t.action, q_t, t.reward, t.discount)]
    q = tools.perceptron(state.params, t.obs)[np.arange(6), t.action]
    found = agent.feedback(state, t, tools.KEY)["target"]
    for name, got, expected in (
        ("target", info.feedback["target"], target), ("feedback", found, target),
        ("td_error", info.feedback["td_error"], target - q),
    ):  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=name)
