"""PER by the expected TD error, EPER (Panahi et al. 2024): noise in TD errors has no priority."""

import dataclasses

from jaxreplay import objectives, schedules
from jaxreplay.methods import options
from jaxreplay.methods.per import PERLeaf
from jaxreplay.methods.proportional import (
    ImportanceWeights,
    Initial,
    Maximum,
    Normalisation,
    Proportional,
)
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.sampler import Method
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import Requirements

_FEEDBACK = frozenset({"expected_td_error"})


@dataclasses.dataclass(frozen=True)
class EPERConfig(Config):
    """Hyperparameters of EPER, those of PER for the expected TD error."""

    alpha: float = option(0.6, options.ALPHA)
    epsilon: float = option(1e-6, options.EPSILON)
    clip: float | None = option(None, options.CLIP)
    initial: Initial = option("max", options.INITIAL)
    maximum: Maximum = option("all_time", options.MAXIMUM)
    sampling: Sampling = option("stratified", options.SAMPLING)
    beta: float = option(0.4, options.BETA)
    beta_end: float = option(1.0, options.BETA_END)
    beta_updates: int | None = option(None, options.BETA_UPDATES)
    normalise: Normalisation = option("batch", options.NORMALISE)
    loss: LossName = option("agent", options.LOSS)
    weigh_actor: bool = option(False, options.WEIGH_ACTOR)


def sampler(config: EPERConfig = EPERConfig()) -> Proportional:
    """Return the EPER sampler: PER with the feedback `expected_td_error` as the TD error."""
    leaf = PERLeaf(config.alpha, config.epsilon, config.clip, "expected_td_error")
    beta = schedules.linear(config.beta, config.beta_end, config.beta_updates)
    return Proportional(
        leaf,
        ImportanceWeights(beta, config.normalise),
        feedback=_FEEDBACK,
        sampling=config.sampling,
        initial=config.initial,
        maximum=config.maximum,
    )


def method(config: EPERConfig = EPERConfig()) -> Method:
    """Return EPER: the sampler, and an objective that averages weighted critic losses.

    The objective requires that agents predict `expected_td_error`, the mean of the TD error given
    the observation and the action.
    """
    objective = objectives.weighted(objectives.named(config.loss), config.weigh_actor)._replace(
        requires=Requirements(feedback=_FEEDBACK)
    )
    return Method(sampler(config), objective)
