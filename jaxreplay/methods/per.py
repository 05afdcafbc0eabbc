"""Prioritised experience replay, proportional variant (Schaul et al. 2016)."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp

from jaxreplay._internal.numerics import to_power
from jaxreplay.methods.parts.options import ImportanceOptions, PriorityOptions, WeightedLossOptions
from jaxreplay.methods.proportional import Proportional
from jaxreplay.option import check_config_class, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import Array


@dataclasses.dataclass(frozen=True)
class PERConfig(WeightedLossOptions, ImportanceOptions, PriorityOptions):
    """Hyperparameters of proportional prioritised replay."""

    clip: float | None = option(
        None, "upper bound on |TD error| in priorities; none: unbounded", above=0
    )


@dataclasses.dataclass(frozen=True)
class PERLeaf:
    """Computes priorities `(min(|td|, clip) + epsilon)^alpha` (Schaul et al. 2016, Sec. 3.3)."""

    alpha: float
    epsilon: float
    clip: float | None

    def __call__(self, feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        size = jnp.abs(feedback["td_error"])
        if self.clip is not None:
            size = jnp.minimum(size, self.clip)
        return to_power(size + self.epsilon, self.alpha)


@check_config_class
def sampler(config: PERConfig = PERConfig()) -> Proportional:
    """Return the proportional PER sampler: `P(i) = p_i^alpha / sum_j p_j^alpha`.

    The priority is `p = |td| + epsilon` (Schaul et al. 2016, Eq. 1 and Alg. 1). Importance weights
    are `(N P(i))^-beta`, optionally divided by the largest weight in the batch or the buffer. Beta
    is constant unless `beta_updates` or `config.for_run` sets the length of its schedule.
    """
    return Proportional(
        PERLeaf(config.alpha, config.epsilon, config.clip),
        config.weight,
        sampling=config.sampling,
        initial=config.initial,
    )


@check_config_class
def method(config: PERConfig = PERConfig()) -> Method:
    """Return proportional PER: the sampler and an objective.

    The objective averages importance-weighted critic losses.

    Args:
      config: options; `config.for_run(updates)` anneals beta over `updates` gradient steps.

    Example:
      >>> from jaxreplay import Replay
      >>> per = method(PERConfig(alpha=0.7).for_run(100_000))
      >>> replay = Replay(per.sampler, capacity=100_000, batch_size=256)
    """
    return Method(sampler(config), config.objective())
