"""Windows of successive steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Transition, make_replay
from jaxreplay.methods.windows import WindowsConfig, sampler

E, LENGTH, BATCH = 2, 4, 16
FLAG, SCALAR = jnp.zeros((), bool), jnp.zeros(())
EXAMPLE = Transition(SCALAR, SCALAR, SCALAR, SCALAR, SCALAR, FLAG, FLAG)


def filled(rows, capacity=24):
    replay = make_replay(
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
        _, batch = replay.sample(state, jax.random.key(seed))
        reward = np.asarray(batch.transition.reward).reshape(LENGTH, -1)
        np.testing.assert_array_equal(np.diff(reward, axis=0), 10)
        assert reward.min() // 10 >= max(0, rows - 12) and reward.max() // 10 < rows
        np.testing.assert_array_equal(batch.aux.slots.ravel(), batch.indices)


@pytest.mark.parametrize("rows", [5, 8, 20])
def test_every_window_is_as_likely_as_any(rows):
    replay, state = filled(rows)
    draw = jax.jit(jax.vmap(lambda key: replay.sample(state, key)[1]))
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


def test_sizes_that_hold_no_window_are_refused():
    for length in (3, 16):
        replay = make_replay(sampler(WindowsConfig(length)), capacity=32, batch_size=16, num_envs=2)
        state = replay.init(jax.random.key(0), EXAMPLE)
        state = replay.add(state, jax.tree.map(lambda x: jnp.stack([x] * 2), EXAMPLE))
        with pytest.raises(ValueError, match=f"does not hold windows of {length} steps"):
            jax.eval_shape(replay.sample, state, jax.random.key(0))
    with pytest.raises(ValueError, match="length is 0"):
        WindowsConfig(0)
