"""Adapter of gymnax's bsuite tasks: sizes, action mappings and dtypes, checked by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import environments
from experiments.runs.registry import THRESHOLDS

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


def test_deep_sea_supports_any_size():
    name = f"{DEEP_SEA}-13"
    assert name not in environments.names() and DEEP_SEA in environments.names()
    environment = environments.make(name)
    assert environment.spec.obs.shape == (13, 13) and environment.spec.obs.dtype == bool
    assert environment.max_steps == 13 and environment.name == name
    assert environments.action_kind(name) == "discrete"
    picture = environments.renderer(name)(environment.reset(jax.random.key(0))[0])
    assert picture.shape == (13 * 24, 13 * 24, 3)
