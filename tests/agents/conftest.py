"""Fixtures shared by the tests of the agents."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay.types import Sample, Transition


@pytest.fixture(scope="session")
def make_sample() -> Callable[..., Sample]:
    """Return a function that wraps arrays `[B, ...]` as a Sample; weights are 1 by default."""

    def make(obs, action, reward, discount, next_obs, weights=None) -> Sample:
        reward, discount = jnp.float32(reward), jnp.float32(discount)
        rows = jnp.arange(reward.shape[0], dtype=jnp.int32)
        edge = jnp.zeros(reward.shape, bool)
        obs, action, next_obs = jnp.asarray(obs), jnp.asarray(action), jnp.asarray(next_obs)
        transition = Transition(obs, action, reward, discount, next_obs, edge, edge)
        weights = jnp.ones(reward.shape) if weights is None else jnp.float32(weights)
        return Sample(rows, transition, weights, rows)

    return make


@pytest.fixture(scope="session")
def sample(make_sample) -> Sample:
    """Return eight steps of three observed numbers and two actions; every third terminates."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, 8, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (8, 2)).astype(np.float32)
    discount = np.where(np.arange(8) % 3 == 0, 0.0, 0.97)
    return make_sample(obs, action, rng.normal(size=8), discount, next_obs)
