"""Evaluation: what counts, the same in both loops."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.environments.types import TimeStep
from experiments.training.evaluation import evaluation_keys, keys_at, play_out, python_while

ENDS = np.array([[2, 5, 1], [3, 3, 4]])  # agent steps of the first episode, 2 seeds of 3


def play(make, while_loop):
    """Play environments that pay 1, 2, 3 ... and nan once their first episode is over."""

    def step(playing, time):
        count = playing + 1
        assert playing.shape == ENDS.shape
        reward = make.where(count > ENDS, make.float32(np.nan), count.astype(np.float32))
        over = count == ENDS
        even = ENDS % 2 == 0
        return count, TimeStep(reward, over & even, over & ~even, playing)

    return play_out(step, make.zeros(ENDS.shape, np.int32), ENDS.shape, while_loop)


def test_returns_and_lengths_are_those_of_the_first_episodes_on_device_and_host():
    for make, loop in ((np, python_while), (jnp, jax.lax.while_loop)):
        returns, lengths = play(make, loop)
        np.testing.assert_array_equal(lengths, ENDS)
        np.testing.assert_array_equal(returns, ENDS * (ENDS + 1) / 2)
        assert (returns.dtype, lengths.dtype) == (np.float32, np.int32)
        assert isinstance(returns, np.ndarray) == (make is np)


def test_no_key_of_an_evaluation_is_used_twice():
    all_ = evaluation_keys(jax.random.key(0), 4)
    steps = [keys_at(all_, time) for time in range(5)]
    data = [jax.random.key_data(jnp.append(acting, each)) for acting, each in steps]
    data.append(jax.random.key_data(all_.resets))
    assert len(np.unique(np.concatenate(data), axis=0)) == 5 * 5 + 4
