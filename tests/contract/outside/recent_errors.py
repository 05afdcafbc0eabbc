"""A custom replay method: priority = |TD error| times recency at the last replay."""

import dataclasses

import jax.numpy as jnp

from jaxreplay import Method, linear, objectives, ring
from jaxreplay.methods.proportional import ImportanceWeights, Proportional
from jaxreplay.option import Config, option


@dataclasses.dataclass(frozen=True)
class RecentErrorsConfig(Config):
    """Hyperparameters of prioritised replay that prefers recent transitions."""

    alpha: float = option(0.6, "prioritisation exponent, 0 is uniform", at_least=0)
    half_life: float = option(0.5, "age that halves the priority, share of the buffer", above=0)
    beta_updates: int | None = option(None, "updates until beta is 1; none: all", whole_run=True)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """`p^alpha` for the priority `p = |td| 2^(-age / half-life)`."""

    config: RecentErrorsConfig

    def __call__(self, feedback, slots, memory):
        steps = self.config.half_life * memory.capacity / memory.num_envs
        recency = 0.5 ** (ring.age(memory, slots) / steps)
        return ((jnp.abs(feedback["td_error"]) + 1e-6) * recency) ** self.config.alpha


def method(config: RecentErrorsConfig = RecentErrorsConfig()) -> Method:
    """Return a method that samples in proportion to `Leaf`, with importance weights as in PER."""
    weight = ImportanceWeights(linear(0.4, 1.0, config.beta_updates))
    return Method(Proportional(Leaf(config), weight), objectives.weighted())
