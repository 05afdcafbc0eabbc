"""Prioritised experience replay, proportional variant (Schaul et al. 2016)."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay.methods import options
from jaxreplay.methods.proportional import Proportional, importance_weights
from jaxreplay.numerics import to_power
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import Array


@dataclasses.dataclass(frozen=True)
class PERConfig(Config):
    """Hyperparameters of proportional prioritised replay."""

    alpha: float = option(0.6, options.ALPHA)
    epsilon: float = option(1e-6, options.EPSILON)
    clip: float | None = option(None, options.CLIP)
    initial: options.Initial = option("max", options.INITIAL)
    maximum: options.Maximum = option("all_time", options.MAXIMUM)
    sampling: Sampling = option("stratified", options.SAMPLING)
    beta: float = option(0.4, options.BETA)
    beta_end: float = option(1.0, options.BETA_END)
    beta_updates: int | None = option(None, options.BETA_UPDATES)
    normalise: options.Normalisation = option("batch", options.NORMALISE)
    loss: LossName = option("agent", options.LOSS)
    weigh_actor: bool = option(False, options.WEIGH_ACTOR)


@dataclasses.dataclass(frozen=True)
class PERLeaf:
    """Computes `p^alpha` for `p = min(|td|, clip) + epsilon` (Schaul et al. 2016, Sec. 3.3)."""

    alpha: float
    epsilon: float
    clip: float | None
    td: str = "td_error"  # name of the feedback, which EPER replaces

    def __call__(self, feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        size = jnp.abs(feedback[self.td])
        if self.clip is not None:
            size = jnp.minimum(size, self.clip)
        return to_power(size + self.epsilon, self.alpha)


def sampler(config: PERConfig = PERConfig()) -> Proportional:
    """Return the proportional PER sampler: `P(i) = p_i^alpha / sum_j p_j^alpha`.

    `p = min(|td|, clip) + epsilon` (Schaul et al. 2016, Eq. 1 and Alg. 1). Importance weights
    are `(N P(i))^-beta`, optionally divided by the largest weight in the batch or the buffer. Beta
    is constant unless `beta_updates` or `config.for_run` sets the length of its schedule.
    """
    return Proportional(
        PERLeaf(config.alpha, config.epsilon, config.clip),
        importance_weights(config),
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
    error = objectives.named(config.loss)
    return Method(sampler(config), objectives.weighted(error, config.weigh_actor))
