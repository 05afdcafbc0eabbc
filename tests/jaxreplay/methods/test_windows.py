"""Windows of successive steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Transition, Replay
from jaxreplay.methods.windows import WindowsConfig, sampler

E, LENGTH, BATCH = 2, 4, 16
FLAG, SCALAR = jnp.zeros((), bool), jnp.zeros(())
EXAMPLE = Transition(SCALAR, SCALAR, SCALAR, SCALAR, SCALAR, FLAG, FLAG)


def filled(rows, capacity=24):
    replay = Replay(
        sampler(WindowsConfig(LENGTH)), capacity=capacity, batch_size=BATCH, num_envs=E
    )
    state = replay.init(jax.random.key(0), EXAMPLE)
    for row in range(rows):
        t = jax.tree.map(lambda x: jnp.stack([x] * E), EXAMPLE)
        state = replay.add(state, t._replace(reward=10.0 * row + jnp.arange(E)))
    return replay, state


@pytest.mark.parametrize("rows", [8, 12, 13, 31])
def test_windows_run_forward_in_one_environment(rows):
    replay, state = filled(rows)
    for seed in range(20):
        batch = replay.sample(state, jax.random.key(seed))
        reward = np.asarray(batch.transition.reward).reshape(LENGTH, -1)
        np.testing.assert_array_equal(np.diff(reward, axis=0), 10)
        assert reward.min() // 10 >= max(0, rows - 12) and reward.max() // 10 < rows
        np.testing.assert_array_equal(batch.aux.slots.ravel(), batch.indices)


@pytest.mark.parametrize("rows", [5, 8, 20])
def test_every_window_is_as_likely_as_any(rows):
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
    ("length", "capacity", "batch", "message"),
    [
        (
            3,
            32,
            16,
            "windows of 3 steps: use a multiple of 3, at least 6",
        ),
        (16, 32, 16, "does not hold windows of 16 steps: use a multiple of 16, at least 32"),
        (8, 64, 20, "batch_size 20 does not hold windows of 8 steps"),
        (
            80,
            64,
            20,
            "capacity 64 does not hold windows of 80 steps: use 160 at least",
        ),
    ],
)
def test_sizes_that_hold_no_window_are_refused(length, capacity, batch, message):
    sizes = {"capacity": capacity, "num_envs": 2}
    with pytest.raises(ValueError, match=message):
        Replay(sampler(WindowsConfig(length)), batch_size=batch, **sizes)


def test_another_size_that_holds_no_window_is_refused():
    replay = Replay(sampler(WindowsConfig(4)), capacity=32, batch_size=16, num_envs=2)
    state = jax.eval_shape(replay.init, jax.random.key(0), EXAMPLE)
    with pytest.raises(ValueError, match="use a multiple of 4, at least 16"):
        Replay(sampler(WindowsConfig(4)), capacity=32, batch_size=12, num_envs=4)
    with pytest.raises(ValueError, match="batch_size 10 does not hold windows of 4 steps"):
        jax.eval_shape(lambda s, k: replay.sample(s, k, 10), state, jax.random.key(0))


def test_windows_have_a_step():
    with pytest.raises(ValueError, match="length is 0"):
        WindowsConfig(0)
