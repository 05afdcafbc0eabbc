"""Munchausen DQN: its target by hand and against the paper's sums in NumPy, and its updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.dqn import DQNConfig, dqn, munchausen_target
from agents.types import Discrete

PAPER = DQNConfig(munchausen=True)
target_ = jax.jit(munchausen_target, static_argnums=5)


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
def test_target_worked_by_hand(q_tm1, action, q_t, discount, expected):
    config = DQNConfig(munchausen_alpha=0.5, munchausen_tau=1.0, munchausen_clip=-2.0)
    args = np.float32(q_tm1), np.int32(action), np.float32(q_t), np.float32(1), np.float32(discount)
    np.testing.assert_allclose(target_(*args, config), expected, rtol=1e-6)
    np.testing.assert_allclose(reference(*args, config), expected, rtol=1e-6)


def test_target_worked_by_hand_with_published_settings():
    """A gap of 0.03 log 2 gives the policy (2/3, 1/3) and the bonus 0.9 * 0.03 log(1/3)."""
    q = np.float32([1 + 0.03 * np.log(2), 1.0])
    args = q, np.int32(1), q, np.float32(0.5), np.float32(0.99)
    expected = 0.5 + 0.9 * 0.03 * np.log(1 / 3) + 0.99 * (1 + 0.03 * np.log(3))
    np.testing.assert_allclose(target_(*args, PAPER), expected, rtol=1e-6)
    # A gap of 2 is 67 temperatures: tau log pi is -2, clipped at -1.
    far = target_(np.float32([2, 0]), np.int32(1), q, np.float32(0.5), np.float32(0), PAPER)
    np.testing.assert_allclose(far, 0.5 - 0.9, rtol=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.01, 1.0, 100.0]), st.sampled_from([0.0, 0.9]))
def test_target_agrees_with_the_papers_sums(seed, scale, discount):
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


def states(seed, **options):
    agent = dqn(DQNConfig(hidden=(8,), **options), Discrete(3))
    state = agent.init(jax.random.key(seed), jnp.zeros(4), jnp.int32(0))
    other = agent.init(jax.random.key(seed + 1), jnp.zeros(4), jnp.int32(0))
    return agent, state._replace(target_params=other.params)


def forward(params, obs):
    layers = jax.tree.map(np.asarray, params["params"]["MLP_0"])
    hidden = np.maximum(obs @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"], 0)
    return hidden @ layers["Dense_1"]["kernel"] + layers["Dense_1"]["bias"]


def batch(make_sample):
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, 6, 4)).astype(np.float32)
    action, reward = rng.integers(0, 3, 6).astype(np.int32), rng.normal(size=6)
    return make_sample(obs, action, reward, [0, 0.97, 0.97, 0.9, 0, 0.9], next_obs)


def test_updates_compute_targets_from_the_target_network_alone(make_sample):
    agent, state = states(0, munchausen=True)
    sample = batch(make_sample)
    _, info = jax.jit(agent.update)(state, sample, jax.random.key(0))
    t = jax.tree.map(np.asarray, sample.transition)
    q_tm1, q_t = (forward(state.target_params, obs) for obs in (t.obs, t.next_obs))
    target = [reference(*row, PAPER) for row in zip(q_tm1, t.action, q_t, t.reward, t.discount)]
    q = forward(state.params, t.obs)[np.arange(6), t.action]
    np.testing.assert_allclose(info.feedback["target"], target, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(info.feedback["td_error"], target - q, rtol=1e-4, atol=1e-5)
    found = agent.feedback(state, sample.transition, jax.random.key(0))
    np.testing.assert_allclose(found["target"], target, rtol=1e-4, atol=1e-5)


def test_options_have_no_effect_when_disabled(make_sample):
    sample = batch(make_sample)
    plain, state = states(0)
    other, _ = states(0, munchausen_alpha=0.1, munchausen_tau=5.0, munchausen_clip=-9.0)
    one, two = (jax.jit(agent.update)(state, sample, jax.random.key(0)) for agent in (plain, other))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_munchausen_dqn_learns_the_values_of_a_chain(make_sample):
    """State 0 leads to 1, which terminates with reward 1; the fixed point is computed in NumPy."""
    observations = np.eye(2, dtype=np.float32)
    obs, action = observations[[0, 0, 1, 1]], np.int32([0, 1, 0, 1])
    sample = make_sample(obs, action, [0, 0, 1, 0], [0.9, 0, 0, 0], observations[[1, 1, 0, 0]])
    config = DQNConfig(
        hidden=(16,), learning_rate=1e-2, target_every=10, tau=1.0,
        munchausen=True, munchausen_tau=0.1,
    )  # fmt: skip
    agent = dqn(config, Discrete(2))
    state = agent.init(jax.random.key(0), jnp.asarray(observations[0]), jnp.int32(0))

    def body(state, key):
        state, info = agent.update(state, sample, key)
        return state, info.feedback["q_value"]

    keys = jax.random.split(jax.random.key(1), 1500)
    q = jax.jit(lambda s: jax.lax.scan(body, s, keys)[1])(state)[-1]
    fixed = np.zeros((2, 2))
    for _ in range(200):
        rows = [(fixed[0], a, fixed[1], 0, 0.9 * (a == 0), config) for a in (0, 1)]
        rows += [(fixed[1], a, fixed[0], float(a == 0), 0, config) for a in (0, 1)]
        fixed = np.reshape([reference(*row) for row in rows], (2, 2))
    np.testing.assert_allclose(q, fixed.ravel(), atol=0.02)
    # The action gap exceeds the 1 of the rewards (Sec. 3).
    assert fixed[1, 0] - fixed[1, 1] > 1.5
