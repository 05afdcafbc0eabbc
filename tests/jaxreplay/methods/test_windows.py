"""Windows of consecutive steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition
from jaxreplay.methods.windows import WindowsConfig, sampler
from tests.refusals import refused

E, LENGTH, BATCH = 2, 4, 16
FLAG, SCALAR = jnp.zeros((), bool), jnp.zeros(())
EXAMPLE = Transition(SCALAR, SCALAR, SCALAR, SCALAR, SCALAR, FLAG, FLAG)


def filled(rows, capacity=24):
    replay = Replay(sampler(WindowsConfig(LENGTH)), capacity=capacity, batch_size=BATCH, num_envs=E)
    state = replay.init(jax.random.key(0), EXAMPLE)
    for row in range(rows):
        t = jax.tree.map(lambda x: jnp.stack([x] * E), EXAMPLE)
        state = replay.add(state, t._replace(reward=10.0 * row + jnp.arange(E)))
    return replay, state


@pytest.mark.parametrize("rows", [8, 12, 13, 31])
def test_windows_are_consecutive_steps_of_one_environment(rows):
    replay, state = filled(rows)
    for seed in range(20):
        batch = replay.sample(state, jax.random.key(seed))
        reward = np.asarray(batch.transition.reward).reshape(LENGTH, -1)
        np.testing.assert_array_equal(np.diff(reward, axis=0), 10)
        assert reward.min() // 10 >= max(0, rows - 12) and reward.max() // 10 < rows
        np.testing.assert_array_equal(batch.aux.slots.ravel(), batch.indices)


@pytest.mark.parametrize("rows", [5, 20])
def test_all_windows_are_equally_likely(rows):
    replay, state = filled(rows)
    draw = jax.jit(jax.vmap(lambda key: replay.sample(state, key)))
    batch = draw(jax.random.split(jax.random.key(1), 4000))
    rewards = np.asarray(batch.transition.reward)
    starts, counts = np.unique(rewards.reshape(4000, LENGTH, -1)[:, 0], return_counts=True)
    windows = (min(rows, 12) - LENGTH + 1) * E
    assert len(starts) == windows
    expected = counts.sum() / windows
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    chance = np.asarray(replay.probability(state, jnp.arange(24)))
    assert chance.sum() == pytest.approx(1)
    expected, counts = chance * rewards.size, np.bincount(batch.indices.ravel(), minlength=24)
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize(
    ("length", "capacity", "batch", "parts"),
    [
        (
            3,
            32,
            16,
            ("batch_size", "16", "3", "6"),
        ),
        (16, 32, 16, ("batch_size", "16", "32")),
        (8, 64, 20, ("batch_size", "20", "8", "16")),
        (
            80,
            64,
            20,
            ("capacity", "64", "80", "160"),
        ),
    ],
)
def test_sizes_that_fit_no_window_are_refused(length, capacity, batch, parts):
    sizes = {"capacity": capacity, "num_envs": 2}
    with refused(*parts):
        Replay(sampler(WindowsConfig(length)), batch_size=batch, **sizes)


def test_sample_refuses_sizes_that_fit_no_window():
    replay = Replay(sampler(WindowsConfig(4)), capacity=32, batch_size=16, num_envs=2)
    state = jax.eval_shape(replay.init, jax.random.key(0), EXAMPLE)
    with refused("batch_size", "12", "4", "16"):
        Replay(sampler(WindowsConfig(4)), capacity=32, batch_size=12, num_envs=4)
    with refused("batch_size", "10", "4", "8"):
        jax.eval_shape(lambda s, k: replay.sample(s, k, 10), state, jax.random.key(0))


def test_length_0_is_refused():
    with refused("length", "0"):
        WindowsConfig(0)
