"""Prioritised experience replay, proportional variant (Schaul et al. 2016)."""

import dataclasses

import jax.numpy as jnp

from jaxreplay._internal.powers import to_power
from jaxreplay.methods import proportional
from jaxreplay.methods.parts.options import (
    ImportanceOptions,
    PriorityOptions,
    WeightedLossOptions,
)
from jaxreplay.option import option, takes_own_config
from jaxreplay.types import Array, Method, Sampler


@dataclasses.dataclass(frozen=True)
class PERConfig(WeightedLossOptions, ImportanceOptions, PriorityOptions):
    """Hyperparameters of proportional prioritised replay."""

    clip: float | None = option(
        None, "largest |TD error| that counts for the priority; none: no limit", above=0
    )


@takes_own_config
def sampler(config: PERConfig = PERConfig(), updates: int | None = None) -> Sampler:
    """Make the proportional PER sampler: P(i) = p_i^alpha / sum_j p_j^alpha, p = |td| + epsilon.

    Schaul et al. 2016, Eq. 1 and Alg. 1. Weights are `(N P(i))^-beta`, divided by their largest
    over the batch, over the buffer, or not at all; beta goes linearly to its end.

    Args:
      config: hyperparameters.
      updates: gradient steps of the run, over which beta moves if the config leaves it open;
        None with an open config keeps beta where it is.
    """

    def priority(td_error: Array) -> Array:
        size = jnp.abs(td_error)
        if config.clip is not None:
            size = jnp.minimum(size, config.clip)
        return to_power(size + config.epsilon, config.alpha)

    return proportional.sampler(
        proportional.of_td_error(priority),
        config.importance(updates),
        sampling=config.sampling,
        initial=config.initial,
        track_minimum=config.normalise == "buffer",
        beta=config.beta_at(updates),
    )


@takes_own_config
def method(config: PERConfig = PERConfig(), updates: int | None = None) -> Method:
    """Make proportional PER: its sampler, and an objective weighted by importance."""
    return Method(sampler(config, updates), config.objective())
