"""A replay method of one's own: priority = |TD error| times recency, when last replayed."""

import dataclasses

import jax.numpy as jnp

from jaxreplay import objectives, ring
from jaxreplay.methods import proportional
from jaxreplay.option import Config, option
from jaxreplay.sampler import Method


@dataclasses.dataclass(frozen=True)
class RecentErrorsConfig(Config):
    """Hyperparameters of prioritised replay that prefers recent transitions."""

    alpha: float = option(0.6, "prioritisation exponent, 0 is uniform", at_least=0)
    half_life: float = option(0.5, "age that halves the priority, share of the buffer", above=0)


def method(config: RecentErrorsConfig, updates: int | None = None) -> Method:
    """Make the method: P(i) ~ (|td_i| 2^(-age_i / half-life))^alpha, weights as in PER."""

    def leaf(feedback, slots, memory):
        rows = memory.capacity / memory.num_envs
        recency = 0.5 ** (ring.age(memory, slots) / (config.half_life * rows))
        return ((jnp.abs(feedback["td_error"]) + 1e-6) * recency) ** config.alpha

    weigh = proportional.importance(0.4, 1.0, updates, "batch")
    return Method(proportional.sampler(leaf, weigh), objectives.weighted())
