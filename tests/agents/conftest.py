"""Fixtures shared by the tests of the agents."""

from collections.abc import Callable

import numpy as np
import pytest

from jaxreplay.types import Sample, Transition


@pytest.fixture(scope="session")
def make_sample() -> Callable[..., Sample]:
    """Return a function that wraps arrays `[B, ...]` as a Sample; weights are 1 by default.

    The arrays are NumPy arrays, so that reading them compiles nothing.
    """

    def make(obs, action, reward, discount, next_obs, weights=None) -> Sample:
        reward, discount = np.float32(reward), np.float32(discount)
        rows = np.arange(reward.shape[0], dtype=np.int32)
        edge = np.zeros(reward.shape, bool)
        obs, action, next_obs = np.asarray(obs), np.asarray(action), np.asarray(next_obs)
        transition = Transition(obs, action, reward, discount, next_obs, edge, edge)
        weights = np.float32(np.ones(reward.shape) if weights is None else weights)
        return Sample(rows, transition, weights, rows)

    return make


@pytest.fixture(scope="session")
def sample(make_sample) -> Sample:
    """Return eight transitions with 3-D observations and 2-D actions; every third terminates."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, 8, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (8, 2)).astype(np.float32)
    discount = np.where(np.arange(8) % 3 == 0, 0.0, 0.97)
    return make_sample(obs, action, rng.normal(size=8), discount, next_obs)
