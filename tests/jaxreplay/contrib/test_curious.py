"""Curious replay: priorities and visits by hand, and a count of visits in plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import buffer
from jaxreplay.contrib import curious
from jaxreplay.contrib.curious import CuriousConfig, priority
from tests.refusals import refused
from tests.slots import Slots


@pytest.mark.parametrize(
    ("visits", "expected"),
    [  # 10^4 0.7^visits + (|loss| + 0.01)^0.7
        (0, [10_000.0398107171, 10_001.0069895452, 10_025.1206226092]),
        (1, [7000.0398107171, 7001.0069895452, 7025.1206226092]),
        (10, [282.5150597171, 283.4822385452, 307.5958716092]),
        (26, [0.9785587508, 1.945737579, 26.059370643]),
        (40, [0.0461775228, 1.013356351, 25.126989415]),
    ],
)
def test_priorities_by_hand(visits, expected):
    found = priority(jnp.array([0.0, -1.0, 100.0]), jnp.full(3, visits), CuriousConfig())
    np.testing.assert_allclose(found, expected, rtol=3e-5)


def visits_of(slots):
    return buffer.of_slots(slots.state.sampler.visits, slots.state.ring.capacity)


def test_visits_are_counted_and_reset_by_new_transitions():
    slots = Slots(curious.sampler(), 4, 3, count=4)
    np.testing.assert_array_equal(slots.leaves(), [1e5] * 4)
    slots.update([1, 2, 2], td_error=[1.0, 10.0, 10.0])  # the repeated slot counts once
    np.testing.assert_array_equal(visits_of(slots), [0, 1, 1, 0])
    np.testing.assert_allclose(slots.leaves(), [1e5, 7001.00699, 7005.01538, 1e5], rtol=1e-6)
    slots.update([1, 2, 3], td_error=[1.0, np.nan, 0.0])
    np.testing.assert_array_equal(visits_of(slots), [0, 2, 1, 1])
    slots.add(2)  # overwrites slots 0 and 1
    np.testing.assert_array_equal(visits_of(slots), [0, 0, 1, 1])
    assert slots.metric("mean_visits") == 0.5
    np.testing.assert_allclose(slots.leaves()[:2], [1e5, 1e5])


def test_priorities_equal_those_of_counts_in_plain_python():
    config = CuriousConfig(count_scale=10.0, count_decay=0.5, new_priority=20.0)
    slots, rng = Slots(curious.sampler(config), 6, 4, count=4), np.random.default_rng(0)
    visits, expected = np.zeros(6, int), np.array([20.0] * 4 + [0.0] * 2)
    for _ in range(40):
        if rng.random() < 0.4:
            slot = slots.add().time - 1
            visits[slot % 6], expected[slot % 6] = 0, 20.0
        td = rng.normal(size=6)
        chosen = rng.integers(0, min(slots.time, 6), 4)
        slots.update(chosen, td_error=td[chosen])
        for slot in set(chosen.tolist()):
            visits[slot] += 1
            expected[slot] = 10 * 0.5 ** visits[slot] + (abs(td[slot]) + 0.01) ** 0.7
        np.testing.assert_allclose(slots.leaves(), expected, rtol=1e-5)


def test_signal_model_loss_requires_the_feedback_model_loss():
    slots = Slots(curious.sampler(CuriousConfig(signal="model_loss")), 4, 3, count=4)
    assert slots.run.replay.requires.feedback == {"model_loss"}
    with refused("model_loss"):
        slots.update([0, 1, 2], td_error=np.ones(3))
    slots.update([0, 1, 2], model_loss=np.ones(3))
    np.testing.assert_array_equal(visits_of(slots), [1, 1, 1, 0])
