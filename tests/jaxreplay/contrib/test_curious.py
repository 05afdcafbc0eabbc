"""Curious replay: priorities and visits by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition, sum_tree
from jaxreplay.contrib import curious
from jaxreplay.contrib.curious import CuriousConfig, priority
from tests.methods import compiled
from tests.refusals import refused

EXAMPLE = Transition(reward=np.float32(0))
ROW = Transition(reward=np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("visits", "expected"),
    [
        (0, [10_000.0398107171, 10_001.0069895452, 10_025.1206226092]),  # 10^4 + loss term
        (1, [7000.0398107171, 7001.0069895452, 7025.1206226092]),
        (10, [282.5150597171, 283.4822385452, 307.5958716092]),
        (26, [0.9785587508, 1.945737579, 26.059370643]),
        (40, [0.0461775228, 1.013356351, 25.126989415]),
    ],
)
def test_priorities_by_hand(visits, expected):
    found = priority(jnp.array([0.0, -1.0, 100.0]), jnp.full(3, visits), CuriousConfig())
    np.testing.assert_allclose(found, expected, rtol=3e-5)


def filled(config, count=4):
    replay = compiled(Replay(curious.sampler(config), capacity=4, batch_size=3))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(count):
        state = replay.add(state, ROW)
    return replay, state


def told(replay, state, slots, loss, name="td_error"):
    batch = replay.sample(state, jax.random.key(0))
    slots, added = np.int32(slots), int(state.ring.steps_added)
    batch = batch._replace(indices=slots, version=added - (added - 1 - slots) % 4)
    return replay.update(state, batch, **{name: np.float32(loss)})


def priorities(state):
    return sum_tree.leaves(jax.device_get(state.sampler.priorities.tree))


def test_visits_are_counted_and_reset_by_new_transitions():
    replay, state = filled(CuriousConfig())
    np.testing.assert_array_equal(priorities(state), [1e5] * 4)
    state = told(replay, state, [1, 2, 2], [1.0, 10.0, 10.0])  # the repeated slot counts once
    np.testing.assert_array_equal(state.sampler.visits, [0, 1, 1, 0])
    found = priorities(state)
    np.testing.assert_allclose(found, [1e5, 7001.00699, 7005.01538, 1e5], rtol=1e-6)
    state = told(replay, state, [1, 2, 3], [1.0, np.nan, 0.0])
    np.testing.assert_array_equal(state.sampler.visits, [0, 2, 1, 1])
    for _ in range(2):  # overwrites slots 0 and 1
        state = replay.add(state, ROW)
    np.testing.assert_array_equal(state.sampler.visits, [0, 0, 1, 1])
    assert float(replay.metrics(state)["mean_visits"]) == 0.5
    found = priorities(state)
    np.testing.assert_allclose(found[:2], [1e5, 1e5])


def test_without_the_visit_term_priorities_equal_those_of_per():
    replay, state = filled(CuriousConfig(count_scale=0.0, alpha=0.5, epsilon=0.0))
    state = told(replay, state, [0, 1, 2], [4.0, -9.0, 16.0])
    found = priorities(state)[:3]
    np.testing.assert_allclose(found, [2.0, 3.0, 4.0], rtol=1e-5)


def test_signal_model_loss_requires_the_feedback_model_loss():
    config = CuriousConfig(signal="model_loss")
    assert curious.sampler(config).requires.feedback == {"model_loss"}
    replay, state = filled(config)
    with refused("model_loss"):
        told(replay, state, [0, 1, 2], np.ones(3))
    state = told(replay, state, [0, 1, 2], np.ones(3), "model_loss")
    np.testing.assert_array_equal(state.sampler.visits, [1, 1, 1, 0])
