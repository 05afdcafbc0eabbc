"""Adapter of gymnax's bsuite tasks: sizes, action mappings and dtypes, checked by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import environments
from experiments.runs.registry import THRESHOLDS
from tests.refusals import refused

DEEP_SEA = "gymnax/DeepSea-bsuite"


@functools.cache
def made(name):
    environment = environments.make(name)
    return environment, jax.jit(environment.step)


def play(name, policy, seed=0):
    """Play an episode; return rewards, observations, and the last step."""
    environment, step = made(name)
    state, obs = environment.reset(jax.random.key(seed))
    rewards, seen = [], [np.asarray(obs)]
    for time in range(environment.max_steps):
        action = jnp.asarray(policy(state.inner, time), jnp.int32)
        state, _, out = step(jax.random.fold_in(jax.random.key(seed), time), state, action)
        rewards.append(float(out.reward))
        seen.append(np.asarray(out.final_obs))
        if out.terminated or out.truncated:
            return rewards, seen, out
    raise AssertionError("an episode does not end")


def rightwards(inner, time):
    return inner.action_mapping[inner.row, inner.column]


@pytest.mark.parametrize(("name", "size"), [(DEEP_SEA, 8), (f"{DEEP_SEA}-3", 3)])
def test_deep_sea_rewards_the_end_of_the_diagonal(name, size):
    rewards, seen, out = play(name, rightwards)
    cost = 0.01 / size
    np.testing.assert_allclose(rewards, [-cost] * (size - 1) + [1 - cost], rtol=1e-6)
    assert sum(rewards) == pytest.approx(0.99) and sum(rewards) >= THRESHOLDS[name]
    np.testing.assert_array_equal(seen[:-1], np.eye(size)[:, :, None] * np.eye(size)[:, None])
    assert out.terminated and not seen[-1].any()
    for wrong in (0, size - 1):  # one step to the left loses the treasure
        policy = lambda inner, time: rightwards(inner, time) ^ (time == wrong)
        assert sum(play(name, policy)[0]) == pytest.approx(-cost * (size - 1))


def test_deep_sea_has_one_action_mapping_for_all_episodes():
    def mapping(key, size=8):
        return environments.make(f"{DEEP_SEA}-{size}").reset(key)[0].inner.action_mapping

    first = mapping(jax.random.key(0))
    np.testing.assert_array_equal(first, mapping(jax.random.key(1)))
    listed = environments.make(DEEP_SEA).reset(jax.random.key(2))[0].inner.action_mapping
    np.testing.assert_array_equal(first, listed)
    assert 0.25 < first.mean() < 0.75, "one action always goes right"


def test_catch_rewards_moving_under_the_ball():
    policy = lambda inner, time: 1 + jnp.sign(inner.ball_x - inner.paddle_x)
    for seed in range(3):
        rewards, seen, out = play("gymnax/Catch-bsuite", policy, seed)
        assert rewards == [0.0] * 8 + [1.0] and out.terminated
    rewards, seen, out = play("gymnax/Catch-bsuite", lambda inner, time: 2 * (inner.ball_x < 2))
    assert rewards == [0.0] * 8 + [-1.0]
    assert all(picture.shape == (10, 5) and picture.dtype == bool for picture in seen)


def test_umbrella_rewards_the_first_action_at_the_last_step():
    for right in (True, False):
        policy = lambda inner, time: inner.need_umbrella ^ (not right)
        rewards, seen, out = play("gymnax/UmbrellaChain-bsuite", policy)
        assert len(rewards) == 10 and out.terminated
        assert rewards[-1] == (1.0 if right else -1.0)
        assert set(rewards[:-1]) == {-1.0, 1.0}, "there is no noise on the way"
        assert (seen[-1][0] == seen[-1][1]) == right


def test_four_rooms_rewards_only_the_goal_and_terminates_there():
    environment = environments.make("gymnax/FourRooms-misc")
    state, obs = environment.reset(jax.random.key(0))
    assert obs.tolist() == [4, 1, 8, 9] and obs.dtype == np.float32  # positions of agent and goal
    beside = state._replace(inner=state.inner.replace(pos=jnp.array([8, 8])))
    keys = jax.random.split(jax.random.key(0), 300)
    step = jax.vmap(environment.step, in_axes=(0, None, None))
    _, _, out = jax.jit(step)(keys, beside, jnp.int32(1))  # move right
    there = (out.final_obs[:, :2] == out.final_obs[:, 2:]).all(axis=1)
    np.testing.assert_array_equal(out.reward, there)
    np.testing.assert_array_equal(out.terminated, there)
    assert there.mean() == pytest.approx(2 / 3, abs=0.1)  # one third of the moves are random


def test_deep_sea_supports_any_size():
    name = f"{DEEP_SEA}-13"
    assert name not in environments.names() and DEEP_SEA in environments.names()
    environment = environments.make(name)
    assert environment.spec.obs.shape == (13, 13) and environment.spec.obs.dtype == bool
    assert environment.max_steps == 13 and environment.name == name
    assert environments.action_kind(name) == "discrete"
    picture = environments.renderer(name)(environment.reset(jax.random.key(0))[0])
    assert picture.shape == (13 * 24, 13 * 24, 3)


@pytest.mark.parametrize("text", ["1", "65", "08", "", "x"])
def test_other_sizes_are_refused_in_one_line(text):
    with refused(f"{DEEP_SEA}-{text}", "2", "64", f"{DEEP_SEA}-10"):
        environments.make(f"{DEEP_SEA}-{text}")
