"""DQN: targets worked by hand, exploration, and updates of the target network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.dqn import DQNConfig, double_q_target, dqn
from agents.types import Discrete
from tests.refusals import refused

Q_ONLINE = np.float32([[1.0, 2.0], [0.5, 3.0]])
Q_TARGET = np.float32([[1.0, 1.0], [2.0, -1.0]])
STATES = np.eye(2, dtype=np.float32)


def table(q):
    """Return parameters of a linear network that looks values up by one-hot observations."""
    layer = lambda kernel: {"kernel": jnp.asarray(kernel), "bias": jnp.zeros(2)}
    return {"params": {"MLP_0": {"Dense_0": layer(STATES), "Dense_1": layer(q)}}}


def tabular(**options):
    agent = dqn(DQNConfig(hidden=(2,), **options), Discrete(2))
    state = agent.init(jax.random.key(0), jnp.asarray(STATES[0]), jnp.int32(0))
    return agent, state._replace(params=table(Q_ONLINE), target_params=table(Q_TARGET))


def test_double_q_target_worked_by_hand():
    target = double_q_target(Q_TARGET[1], Q_ONLINE[1], jnp.float32(1), jnp.float32(0.9))
    np.testing.assert_allclose(target, 1 + 0.9 * -1, rtol=1e-6)


@pytest.mark.parametrize(
    "double, discount, td", [(True, 0.9, -0.9), (False, 0.9, 0.8 + 1), (True, 0.0, 0.0)]
)
def test_td_error_of_a_table_worked_by_hand(make_sample, double, discount, td):
    agent, state = tabular(double=double)
    sample = make_sample(STATES[:1], np.int32([0]), [1.0], [discount], STATES[1:])
    _, info = jax.jit(agent.update)(state, sample, jax.random.key(0))
    np.testing.assert_allclose(info.feedback["td_error"], [td], atol=1e-6)
    np.testing.assert_allclose(info.feedback["q_value"], [1.0])


def test_loss_is_the_weighted_huber_loss(make_sample):
    agent, state = tabular()
    sample = make_sample(
        STATES, np.int32([0, 1]), [1.5, 6.0], [0.0, 0.0], STATES, weights=[1.0, 0.5]
    )
    _, info = jax.jit(agent.update)(state, sample, jax.random.key(0))
    np.testing.assert_allclose(info.feedback["td_error"], [0.5, 3.0])
    np.testing.assert_allclose(info.metrics["loss"], (0.125 + 0.5 * 2.5) / 2)


def test_gradient_norm_is_limited(make_sample):
    agent, state = tabular(max_grad_norm=0.01, learning_rate=1.0, adam_eps=1e6)
    sample = make_sample(STATES[:1], np.int32([0]), [100.0], [0.0], STATES[1:])
    after, info = jax.jit(agent.update)(state, sample, jax.random.key(0))
    assert info.metrics["grad_norm"] > 0.1  # norm before clipping
    # Adam with a huge epsilon is gradient descent with step size 1 / epsilon.
    change = jax.tree.map(lambda new, old: 1e6 * (new - old), after.params, state.params)
    moved = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(change)))
    assert moved <= 0.0101


def test_epsilon_decreases_linearly_with_updates():
    agent, state = tabular(epsilon_start=0.8, epsilon_end=0.2, epsilon_updates=100)
    act = jax.jit(agent.act)
    n = 20_000
    obs = jnp.tile(STATES[0], (n, 1))
    assert (agent.greedy(state, obs) == 1).all()  # so action 0 is half of the random actions
    for updates, epsilon in [(0, 0.8), (50, 0.5), (100, 0.2), (1000, 0.2)]:
        clock = state._replace(updates=jnp.int32(updates))
        action, extras = act(clock, obs, jax.random.key(updates))
        assert action.dtype == jnp.int32 and extras is None
        np.testing.assert_allclose((action == 0).mean(), epsilon / 2, atol=0.015)


def test_target_network_is_copied_every_target_every_updates(make_sample):
    agent, state = tabular(target_every=3, tau=0.25)
    sample = make_sample(STATES[:1], np.int32([0]), [1.0], [0.9], STATES[1:])
    update = jax.jit(agent.update)
    for count in range(1, 7):
        before = state.target_params
        state, _ = update(state, sample, jax.random.key(0))
        expected = before
        if count % 3 == 0:
            mix = lambda new, old: 0.25 * new + 0.75 * old
            expected = jax.tree.map(mix, state.params, before)
        jax.tree.map(
            lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-6),
            state.target_params,
            expected,
        )


def test_dqn_learns_the_values_of_a_chain(make_sample):
    """State 0 leads to state 1 without reward, which terminates with reward 1: Q = gamma and 1."""
    config = DQNConfig(hidden=(16,), learning_rate=1e-2, target_every=10, tau=1.0)
    agent = dqn(config, Discrete(2))
    sample = make_sample(STATES, np.int32([0, 1]), [0.0, 1.0], [0.9, 0.0], STATES[::-1].copy())
    state = agent.init(jax.random.key(0), jnp.asarray(STATES[0]), jnp.int32(0))
    # Untaken actions keep their initial values, which must not be the maximum.
    last = state.params["params"]["MLP_0"]["Dense_1"]
    last["bias"] = last["bias"] - 1.0

    def body(state, key):
        state, info = agent.update(state, sample, key)
        return state, info.feedback["q_value"]

    q = jax.jit(lambda s, keys: jax.lax.scan(body, s, keys)[1])(
        state, jax.random.split(jax.random.key(1), 600)
    )
    np.testing.assert_allclose(q[-1], [0.9, 1.0], atol=0.02)


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"network": "resnet"}, ("network", "resnet", "auto", "mlp", "data_efficient")),
        ({"hidden": ()}, ("hidden",)),
        ({"learning_rate": 0.0}, ("learning_rate", "0.0")),
        ({"tau": 1.5}, ("tau", "1.5")),
        ({"target_every": 0}, ("target_every", "0")),
        ({"epsilon_start": 1.1}, ("epsilon_start", "1.1")),
        ({"epsilon_updates": 0}, ("epsilon_updates", "0")),
        ({"max_grad_norm": -1.0}, ("max_grad_norm", "-1.0")),
    ],
)
def test_bad_options_are_refused(options, parts):
    with refused(*parts):
        DQNConfig(**options)


def test_optimiser_may_be_rmsprop(make_sample):
    """The first step of centred RMSProp is -rate g / (sqrt(decay (1 - decay)) |g| + eps)."""
    decay, rate = 0.75, 0.1
    agent, state = tabular(
        optimiser="rmsprop", learning_rate=rate, rmsprop_decay=decay, rmsprop_eps=1e-12,
        max_grad_norm=0.0,
    )  # fmt: skip
    sample = make_sample(STATES[:1], np.int32([1]), [1.0], [0.0], STATES[1:])
    after, _ = jax.jit(agent.update)(state, sample, jax.random.key(0))
    change = [
        np.subtract(*(np.asarray(leaf) for leaf in pair))
        for pair in zip(jax.tree.leaves(after.params), jax.tree.leaves(state.params), strict=True)
    ]
    moved = np.concatenate([x.ravel() for x in change])
    moved = moved[moved != 0]
    np.testing.assert_allclose(np.abs(moved), rate / np.sqrt(decay * (1 - decay)), rtol=1e-4)
    assert moved.size > 0
