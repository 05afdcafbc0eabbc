"""Faded LAP: factors by age by hand, and a dense reference."""

import jax
import numpy as np
import pytest

from jaxreplay import Replay, Transition, sum_tree, testing
from jaxreplay.contrib import faded
from jaxreplay.contrib.faded import DISCRETE, FadedConfig
from jaxreplay.methods import lap
from tests.methods import compiled
from tests.refusals import refused

EXAMPLE = Transition(reward=np.float32(0))


class Dense:
    """LAP with a factor for every slot, as in the authors' code, with ages in transitions."""

    def __init__(self, config, capacity, num_envs):
        self.config, self.num_envs = config, num_envs
        self.leaf, self.step = np.zeros(capacity), np.full(capacity, -1)
        self.time, self.largest = 0, 1.0

    def add(self):
        slots = (self.time * self.num_envs + np.arange(self.num_envs)) % len(self.leaf)
        self.leaf[slots], self.step[slots] = self.largest, self.time
        self.time += 1

    def update(self, slots, td):
        leaf = np.maximum(np.abs(td), self.config.kappa) ** self.config.alpha
        self.leaf[slots] = leaf
        self.largest = max(self.largest, leaf.max())

    def probability(self):
        age = (self.time - 1 - self.step) * self.num_envs
        fade = np.maximum(self.config.fade ** age.astype(float), self.config.floor)
        priority = np.where(self.step >= 0, self.leaf * fade, 0.0)
        return priority / priority.sum()


CASES = {
    "young and old": (FadedConfig(fade=0.97, floor=0.3), 60, 1),
    "two environments": (FadedConfig(fade=0.97, floor=0.3, alpha=0.9), 60, 2),
    "all are young": (FadedConfig(fade=0.99, floor=0.01), 30, 1),
    "the newest alone are young": (FadedConfig(fade=0.95, floor=0.9), 24, 3),
    "rescaled often": (FadedConfig(fade=0.9, floor=0.05), 60, 2),
    "without fading": (FadedConfig(fade=1.0), 24, 2),
    "floor of one": (FadedConfig(floor=1.0), 24, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_probabilities_equal_those_of_the_dense_reference(name):
    config, capacity, num_envs = CASES[name]
    dense = Dense(config, capacity, num_envs)
    replay = compiled(
        Replay(faded.sampler(config), capacity=capacity, batch_size=6, num_envs=num_envs)
    )
    state = replay.init(jax.random.key(0), EXAMPLE)
    row, rng = Transition(reward=np.zeros(num_envs, np.float32)), np.random.default_rng(0)
    for turn in range(150):
        state = replay.add(state, row)
        dense.add()
        if turn > 8:
            batch = replay.sample(state, jax.random.key(turn))
            slots = np.asarray(batch.indices)
            np.testing.assert_allclose(batch.probability, dense.probability()[slots], rtol=3e-5)
            td = 4 * rng.normal(size=capacity)[slots]  # equal for equal slots
            state = replay.update(state, batch, td_error=np.float32(td))
            dense.update(slots, td)
        if turn % 10 == 0 or turn > 145:
            found = replay.probability(state, np.arange(capacity))
            np.testing.assert_allclose(found, dense.probability(), rtol=3e-5, atol=1e-7)
    sum_tree.check_valid(state.sampler.young)
    if state.sampler.old is not None:
        sum_tree.check_valid(state.sampler.old)


def test_ages_at_which_fading_reaches_the_floor():
    config = FadedConfig()
    assert config.age_of_floor(1, 10**6) == 23_025  # ln 0.1 / ln 0.9999 = 23 024.7
    assert config.age_of_floor(8, 10**6) == 2_879
    assert config.age_of_floor(1, 1000) == 1000
    assert FadedConfig(fade=1.0).age_of_floor(1, 1000) == 1000
    assert FadedConfig(floor=1.0).age_of_floor(1, 1000) == 1


def test_priorities_by_age_by_hand():
    capacity, ages = 30_001, np.array([0, 100, 10_000, 23_025, 30_000])
    replay = compiled(
        Replay(faded.sampler(FadedConfig(alpha=1.0)), capacity=capacity, batch_size=5)
    )
    row = Transition(reward=np.zeros(1, np.float32))
    fill = jax.jit(
        lambda state: jax.lax.fori_loop(0, capacity, lambda _, s: replay.add(s, row), state)
    )
    state = fill(replay.init(jax.random.key(0), EXAMPLE))
    batch = replay.sample(state, jax.random.key(0))
    slots = np.int32(capacity - 1 - ages)
    batch = batch._replace(indices=slots, version=slots + 1)
    state = replay.update(state, batch, td_error=np.float32([1.0, 1.5, 2.0, 3.0, 1.0]))
    found = np.asarray(replay.probability(state, slots))
    expected = np.array([1.0, 1.485074008, 0.7357220929, 0.3, 0.1])
    np.testing.assert_allclose(found / found[0], expected, rtol=2e-5)


def test_fade_1_equals_lap():
    ours, theirs = testing.Case(faded.method(FadedConfig(fade=1.0))), testing.Case(lap.method())
    one, other = ours.fill(), theirs.fill()
    for time in range(8, 20):
        one, batch = ours.step(one, time)
        other, expected = theirs.step(other, time)
        np.testing.assert_array_equal(batch.indices, expected.indices)
        np.testing.assert_allclose(batch.probability, expected.probability, rtol=1e-5)


def test_defaults_for_discrete_actions_equal_those_of_lap():
    assert faded.DISCRETE == lap.DISCRETE
    assert FadedConfig(**DISCRETE).kappa == 0.01


@pytest.mark.parametrize("options", [{"fade": 0.89}, {"fade": 1.1}, {"floor": 0.0}, {"floor": 1.1}])
def test_options_out_of_range_are_refused(options):
    ((name, value),) = options.items()
    with refused(name, str(value)):
        FadedConfig(**options)
