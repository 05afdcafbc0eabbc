"""Faded LAP: factors by age by hand, and a dense reference."""

import numpy as np
import pytest

from jaxreplay import sum_tree
from jaxreplay.contrib import faded
from jaxreplay.contrib.faded import DISCRETE, FadedConfig
from jaxreplay.methods import lap
from tests.slots import Slots


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
    "all are young": (FadedConfig(fade=0.99, floor=0.01), 30, 1),
    "the newest alone are young": (FadedConfig(fade=0.95, floor=0.9), 24, 3),
    "rescaled often": (FadedConfig(fade=0.9, floor=0.05), 60, 2),
    "floor of one": (FadedConfig(floor=1.0), 24, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_probabilities_equal_those_of_the_dense_reference(name):
    config, capacity, num_envs = CASES[name]
    dense, rng = Dense(config, capacity, num_envs), np.random.default_rng(0)
    slots = Slots(faded.sampler(config), capacity, 6, num_envs)
    for turn in range(150):
        slots.add()
        dense.add()
        if turn > 8:
            batch = slots.sample(turn)
            expected = dense.probability()[batch.indices]
            np.testing.assert_allclose(batch.probability, expected, rtol=3e-5)
            td = 4 * rng.normal(size=capacity)[batch.indices]  # equal for equal slots
            slots.update(batch.indices, td_error=td)
            dense.update(batch.indices, td)
        if turn % 10 == 0 or turn > 145:
            np.testing.assert_allclose(
                slots.probability(), dense.probability(), rtol=3e-5, atol=1e-7
            )
    sum_tree.check_valid(slots.state.sampler.young)
    if slots.state.sampler.old is not None:
        sum_tree.check_valid(slots.state.sampler.old)


def test_ages_at_which_fading_reaches_the_floor():
    config = FadedConfig()
    assert config.age_of_floor(1, 10**6) == 23_025  # ln 0.1 / ln 0.9999 = 23 024.7
    assert config.age_of_floor(8, 10**6) == 2_879
    assert config.age_of_floor(1, 1000) == 1000
    assert FadedConfig(fade=1.0).age_of_floor(1, 1000) == 1000
    assert FadedConfig(floor=1.0).age_of_floor(1, 1000) == 1


def test_defaults_for_discrete_actions_equal_those_of_lap():
    assert faded.DISCRETE == lap.DISCRETE
    assert FadedConfig(**DISCRETE).kappa == 0.01
