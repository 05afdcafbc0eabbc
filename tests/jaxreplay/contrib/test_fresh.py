"""Priorities that decay with updates: factors by hand, and a dense reference."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import sum_tree
from jaxreplay.contrib import fresh, refresh, relo
from jaxreplay.contrib.fresh import FreshConfig
from jaxreplay.methods import lap, per, rank
from jaxreplay.methods.per import PERConfig
from tests.refusals import refused
from tests.slots import Slots


class Dense:
    """PER with a factor for every slot."""

    def __init__(self, capacity, decay, num_envs=1):
        self.leaf, self.computed = np.zeros(capacity), np.zeros(capacity, int)
        self.decay, self.num_envs, self.steps, self.updates, self.largest = decay, num_envs, 0, 0, 1

    def add(self):
        slots = (self.steps * self.num_envs + np.arange(self.num_envs)) % len(self.leaf)
        self.leaf[slots], self.computed[slots] = self.largest, self.updates
        self.steps += 1

    def update(self, slots, td):
        self.updates += 1
        self.leaf[slots], self.computed[slots] = np.abs(td) ** 0.6, self.updates
        self.largest = max(self.largest, (np.abs(td) ** 0.6).max())

    def probability(self):
        priority = self.leaf * self.decay ** (self.updates - self.computed)
        return priority / priority.sum()


def plain(**options):
    return per.sampler(PERConfig(**{"epsilon": 0.0, "normalise": "none"} | options))


def test_updates_since_the_priority_was_computed_by_hand():
    slots = Slots(fresh.Fresh(plain(), FreshConfig(decay=0.5)), 6, 1, count=3)
    slots.update([2], td_error=[1.0]).update([1], td_error=[1.0]).update([0], td_error=[1.0])
    # 1, 1/2 and 1/4; then a new transition with the maximum, which does not decay.
    np.testing.assert_allclose(slots.probability()[:3], [4 / 7, 2 / 7, 1 / 7], rtol=1e-6)
    np.testing.assert_allclose(
        slots.add().probability()[:4], np.array([4, 2, 1, 4]) / 11, rtol=1e-6
    )
    assert slots.metric("mean_priority") == pytest.approx(2.75 / 4, rel=1e-5)
    assert slots.metric("max_priority") == 1.0


@pytest.mark.parametrize(("decay", "num_envs"), [(0.999, 2), (0.6, 1), (1.0, 1)])
def test_probabilities_equal_those_of_the_dense_reference(decay, num_envs):
    """With a decay of 0.6, leaves are divided by their scale after every 22 updates."""
    dense, rng = Dense(24, decay, num_envs), np.random.default_rng(0)
    slots = Slots(fresh.Fresh(plain(), FreshConfig(decay=decay)), 24, 6, num_envs)
    for turn in range(120):
        slots.add()
        dense.add()
        if turn > 8:
            batch = slots.sample(turn)
            expected = dense.probability()[batch.indices]
            np.testing.assert_allclose(batch.probability, expected, rtol=3e-5)
            size = min((turn + 1) * num_envs, 24)
            np.testing.assert_allclose(batch.weights, (size * expected) ** -0.4, rtol=1e-4)
            td = 4 * rng.normal(size=24)[batch.indices]  # equal for equal slots
            slots.update(batch.indices, td_error=td)
            dense.update(batch.indices, td)
        if turn % 10 == 0:
            np.testing.assert_allclose(
                slots.probability(), dense.probability(), rtol=3e-5, atol=1e-12
            )
    sum_tree.check_valid(slots.state.sampler.scaled.tree)
    assert float(slots.state.sampler.scaled.max_leaf) == pytest.approx(dense.largest, rel=1e-5)


def test_refreshed_priorities_are_new():
    method = refresh.combine(fresh.combine(per.method(PERConfig(epsilon=0.0))))
    slots = Slots(method.sampler, 4, 1, count=4)
    slots.update([0], td_error=[3.0]).update([1], td_error=[2.0])
    td = jnp.array([0.2, -0.6, 0.5, 0.1])
    slots.state = slots.run.replay.refresh(slots.state, jnp.arange(4), td_error=td)
    expected = [0.18777, 0.36298, 0.32537, 0.12388]
    np.testing.assert_allclose(slots.probability(), expected, atol=1e-5)
    assert slots.metric("max_priority") == pytest.approx(0.6**0.6, rel=1e-5)


def test_new_priorities_may_come_from_the_td_error():
    slots = Slots(fresh.Fresh(plain(initial="td", alpha=1.0), FreshConfig(decay=0.5)), 4, 1)
    slots.add(feedback={"td_error": 4.0}).update([0], td_error=[4.0])
    slots.add(feedback={"td_error": 1.0}).update([1], td_error=[1.0])
    slots.add(feedback={"td_error": np.nan})  # the maximum
    np.testing.assert_allclose(slots.probability()[:3], np.array([2, 1, 4]) / 7, rtol=1e-6)


def test_samplers_without_trees_of_priorities_are_refused():
    with refused("inner", "Proportional"):
        fresh.Fresh(rank.sampler())  # pyright: ignore[reportArgumentType]
    with refused("inner", "proportional"):
        fresh.combine(rank.method())
    with refused("normalise", "buffer"):
        fresh.Fresh(plain(normalise="buffer"))
    with refused("maximum", "stored"):
        fresh.Fresh(plain(maximum="stored"))
    with refused("decay", 0.4):
        FreshConfig(decay=0.4)
    assert fresh.combine(relo.method()).requires.feedback == {"reducible_loss"}
    assert fresh.sampler(FreshConfig(over="lap")).inner == lap.sampler()
