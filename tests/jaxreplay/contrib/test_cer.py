"""CER: probabilities by hand, the newest rows, and base methods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition
from jaxreplay.contrib import cer
from jaxreplay.contrib.cer import CERConfig
from jaxreplay.methods import latest, per, rank
from tests.methods import compiled

EXAMPLE = Transition(reward=np.float32(0))


def filled(sampler, count, batch_size=4, num_envs=1, capacity=12):
    replay = compiled(Replay(sampler, capacity=capacity, batch_size=batch_size, num_envs=num_envs))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for step in range(count):
        rewards = step * num_envs + np.arange(num_envs, dtype=np.float32)
        state = replay.add(state, EXAMPLE._replace(reward=rewards))
    return replay, state


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        (1, [0.075] * 9 + [0.325]),  # 3 / 4 / 10, plus 1 / 4 for the newest
        (2, [0.05] * 8 + [0.3] * 2),
        (9, [0.0] * 6 + [0.25] * 4),  # a batch contains at most four
    ],
)
def test_probabilities_by_hand(newest, expected):
    replay, state = filled(cer.sampler(CERConfig(newest=newest)), 10)
    found = replay.probability(state, np.arange(12))
    np.testing.assert_allclose(found, expected + [0.0] * 2, rtol=1e-6)


def test_unbiased_weights_by_hand():
    replay, state = filled(cer.sampler(CERConfig(unbiased=True)), 10)
    for seed in range(5):
        batch = replay.sample(state, jax.random.key(seed))
        newest = np.asarray(batch.indices) == 9
        expected = np.where(newest, 1 / 3.25, 4 / 3)
        np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)
    method = cer.method(CERConfig(unbiased=True))
    loss = method.objective.critic(jnp.array([3.0, 3.0, 0.0, 6.5]), batch, None)
    assert loss == pytest.approx(np.mean(np.array([3.0, 3.0, 0.0, 6.5]) * expected))


@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_the_last_rows_of_a_batch_are_the_newest_transitions(num_envs):
    replay, state = filled(cer.sampler(), 7, num_envs=num_envs)  # 7 steps; the ring stores 12 / E
    for step in range(7, 12):
        rewards = step * num_envs + np.arange(num_envs, dtype=np.float32)
        state = replay.add(state, EXAMPLE._replace(reward=rewards))
        batch = replay.sample(state, jax.random.key(step))
        assert set(np.asarray(batch.transition.reward[-num_envs:])) == set(np.asarray(rewards))


@pytest.mark.parametrize("base", [per.method(), rank.method()])
def test_the_other_rows_equal_those_of_the_base(base):
    combined = cer.combine(base, CERConfig(newest=3))
    assert combined.objective == base.objective
    replay, state = filled(combined.sampler, 11, batch_size=7)
    smaller, _ = filled(base.sampler, 0)
    for seed in range(4):
        own, expected = (r.sample(state, jax.random.key(seed)) for r in (replay, smaller))
        np.testing.assert_array_equal(own.indices, [*expected.indices, 8, 9, 10])
        np.testing.assert_array_equal(own.weights, [*expected.weights, 1, 1, 1])
        td = np.arange(1, 8, dtype=np.float32)
        state = replay.update(state, own, **dict.fromkeys(base.requires.feedback, td))


def test_a_batch_of_newest_transitions_equals_that_of_latest():
    replay, state = filled(cer.sampler(CERConfig(newest=4)), 14)
    other, _ = filled(latest.sampler(), 0)
    own, expected = (r.sample(state, jax.random.key(1)) for r in (replay, other))
    np.testing.assert_array_equal(own.indices, expected.indices)
    np.testing.assert_array_equal(own.probability, expected.probability)


def test_newest_transitions_repeat_if_too_few_are_stored():
    replay, state = filled(cer.sampler(CERConfig(newest=3)), 2)
    assert sorted(np.asarray(replay.sample(state, jax.random.key(0)).indices[1:])) == [0, 1, 1]
    found = replay.probability(state, np.arange(2))
    np.testing.assert_allclose(found, [1 / 8 + 1 / 4, 1 / 8 + 2 / 4])
