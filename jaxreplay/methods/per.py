"""Prioritised experience replay, proportional variant (Schaul et al. 2016).

Configs of related methods inherit groups of options from this module. Dataclasses list the fields
of the last base class first, so put the base class with the most important options last. Use
`override` to change a default.
"""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp

from jaxreplay import schedules
from jaxreplay.methods.options import WeightedLossOptions
from jaxreplay.methods.proportional import (
    ImportanceWeights,
    Initial,
    Maximum,
    Normalisation,
    Proportional,
)
from jaxreplay.numerics import to_power
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import Array

_PER = "Schaul et al. 2016"


@dataclasses.dataclass(frozen=True)
class SamplingOptions(Config):
    """Option for the dependence between the draws of a batch from a sum tree."""

    sampling: Sampling = option(
        "stratified",
        "one draw from each of B equal ranges of the total priority (stratified), at the same "
        "offset in each range (systematic), or independent draws (iid)",
        f"{_PER}, App. B.2.1",
    )


@dataclasses.dataclass(frozen=True)
class PriorityOptions(SamplingOptions):
    """Options for priorities `(|td| + epsilon)^alpha` and the priority of new transitions."""

    alpha: float = option(
        0.6, "prioritisation exponent; 0 is uniform", f"{_PER}, Tab. 3", at_least=0
    )
    epsilon: float = option(
        1e-6, "added to |TD error| before exponentiation; the paper gives no value", at_least=0
    )
    initial: Initial = option(
        "max",
        "priority of new transitions: the running maximum, or computed from their TD error",
        f"{_PER}, Alg. 1; td: Brittain et al. 2019, Sec. 5.3",
    )


@dataclasses.dataclass(frozen=True)
class ImportanceOptions(Config):
    """Options for importance weights and the schedule of their exponent."""

    beta: float = option(
        0.4, "initial importance-sampling exponent", f"{_PER}, Tab. 3", at_least=0, at_most=1
    )
    beta_end: float = option(
        1.0,
        "final importance-sampling exponent of the linear schedule",
        f"{_PER}, Sec. 3.4",
        at_least=0,
        at_most=1,
    )
    beta_updates: int | None = option(
        None,
        "gradient steps over which beta reaches beta_end; none: the whole run",
        f"{_PER}, Sec. 3.4",
        at_least=1,
        whole_run=True,
    )
    normalise: Normalisation = option(
        "batch", "divide importance weights by their batch maximum or buffer maximum, or not at all"
    )

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights; their exponent beta is constant if `beta_updates` is None."""
        beta = schedules.linear(self.beta, self.beta_end, self.beta_updates)
        return ImportanceWeights(beta, self.normalise)


@dataclasses.dataclass(frozen=True)
class MaximumOptions(Config):
    """Option for the maximum that new transitions receive."""

    maximum: Maximum = option(
        "all_time",
        "maximum that new transitions receive: of all priorities so far, or of those of the stored "
        "transitions, which falls after an outlier if batches are larger than the number of "
        "transitions added between them",
        f"{_PER}, Alg. 1: all_time",
    )


@dataclasses.dataclass(frozen=True)
class PERConfig(MaximumOptions, WeightedLossOptions, ImportanceOptions, PriorityOptions):
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
    td: str = "td_error"  # name of the feedback

    def __call__(self, feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        size = jnp.abs(feedback[self.td])
        if self.clip is not None:
            size = jnp.minimum(size, self.clip)
        return to_power(size + self.epsilon, self.alpha)


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
        maximum=config.maximum,
    )


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
