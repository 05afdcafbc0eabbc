"""Pendulum*: dynamics and rewards worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import environments
from experiments.environments.sparse_pendulum import Pendulum, count_upright, reward, swing
from experiments.environments.types import CompiledConfig
from tests.refusals import refused

NAME = "sparse_pendulum/Pendulum-v0"


@pytest.mark.parametrize(
    ("angle", "speed", "torque", "expected"),
    [
        (np.pi / 4, 0.5, 1.0, (0.8444146677, 1.1803300859)),
        (np.pi / 2, 7.8, 2.0, (2.0132963268, 8.0)),  # the angle uses the unclipped speed
        (-3.0, 0.0, 5.0, (-2.9902920, 0.19415999)),  # the torque is clipped to 2
    ],
)
def test_dynamics_equal_values_worked_by_hand(angle, speed, torque, expected):
    found = swing(jnp.float32(angle), jnp.float32(speed), jnp.float32(torque))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def total(angles):
    upright, returned = jnp.zeros((), jnp.int32), 0.0
    for angle in angles:
        upright = count_upright(upright, jnp.float32(angle))
        returned += float(reward(upright))
    return returned


def test_reward_requires_twenty_consecutive_steps_in_the_region():
    assert total([0.0] * 30 + [2.0] + [1.0] * 25) == 10 + 0 + 5
    assert total([0.1] * 200) == 180
    assert total([1.0, 2.0] * 100) == 0
    for angle, expected in ((np.pi / 3 - 1e-5, 1), (np.pi / 3 + 1e-5, 0), (np.pi, 0),
                            (2 * np.pi + 0.1, 1), (-4 * np.pi - 1.0, 1)):  # fmt: skip
        assert total([angle] * 21) == expected


def test_starts_are_uniform_over_all_angles_and_slow_speeds():
    reset = environments.make(NAME).reset
    state, _ = jax.jit(jax.vmap(reset))(jax.random.split(jax.random.key(0), 4000))
    for values, bound in ((state.inner.angle, np.pi), (state.inner.speed, 1.0)):
        deciles, _ = np.histogram(values, bins=10, range=(-bound, bound))
        assert deciles.sum() == 4000, "a start lies outside its range"
        assert np.abs(deciles - 400).max() < 100  # 5 standard deviations of 19
    assert abs(np.corrcoef(state.inner.angle, state.inner.speed)[0, 1]) < 0.1
    assert (state.inner.upright == 0).all()


def test_an_episode_follows_the_dynamics_and_ends_by_its_limit():
    environment = environments.make(NAME)
    state, obs = environment.reset(jax.random.key(3))
    angle, speed = np.arctan2(float(obs[1]), float(obs[0])), float(obs[2])
    assert abs(angle) <= np.pi and abs(speed) <= 1

    def step(carry, key):
        state, _ = carry
        state, obs, out = environment.step(key, state, jnp.full(1, 0.5))
        return (state, obs), out

    keys = jax.random.split(jax.random.key(0), 201)
    _, out = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))((state, obs))
    assert np.flatnonzero(out.truncated).tolist() == [199] and not out.terminated.any()
    for seen in np.asarray(out.final_obs[:20]):
        angle, speed = (float(x) for x in swing(jnp.float32(angle), jnp.float32(speed), 1.0))
        np.testing.assert_allclose(seen, [np.cos(angle), np.sin(angle), speed], atol=1e-4)


def one_step(angle, speed, upright, action):
    environment = environments.make(NAME)
    state, _ = environment.reset(jax.random.key(0))
    inner = Pendulum(jnp.float32(angle), jnp.float32(speed), jnp.int32(upright))
    state, _, out = environment.step(
        jax.random.key(1), state._replace(inner=inner), jnp.full(1, action)
    )
    return int(state.inner.upright), float(out.reward), np.asarray(out.final_obs)


@pytest.mark.parametrize(
    ("angle", "speed", "upright", "expected"),
    [
        (0.0, 0.0, 19, (20, 0.0)),
        (0.0, 0.0, 20, (21, 1.0)),
        (1.0, 4.0, 30, (0, 0.0)),  # leaves the region in this step
        (1.1, -4.0, 0, (1, 0.0)),  # enters the region in this step
    ],
)
def test_steps_count_and_reward_the_next_angle(angle, speed, upright, expected):
    assert one_step(angle, speed, upright, 0.0)[:2] == expected


@pytest.mark.parametrize(
    ("action", "torque"), [(0.25, 0.5), (1.0, 2.0), (-1.0, -2.0), (-9.0, -2.0)]
)
def test_actions_are_scaled_to_the_torque_and_clipped(action, torque):
    speed = 0.15 * torque  # 3 torque * 0.05 s, from upright at rest
    expected = [np.cos(0.05 * speed), np.sin(0.05 * speed), speed]
    np.testing.assert_allclose(one_step(0.0, 0.0, 0, action)[2], expected, atol=1e-6)


def test_options_are_given_as_a_config_or_by_name():
    assert environments.make(NAME, max_steps=None).max_steps == 200
    with refused("max_steps", "0"):
        environments.make(NAME, max_steps=0)
    with refused(NAME, "--env.backend"):
        environments.make(NAME, backend="spring")
    config = environments.options(NAME, max_steps=7)
    assert config == CompiledConfig(max_steps=7)
    assert environments.make(NAME, config).max_steps == 7
    assert environments.make(NAME, config, max_steps=8).max_steps == 8
    with refused(NAME, "CompiledConfig", "BraxConfig"):
        environments.make(NAME, environments.options("brax/ant"))
