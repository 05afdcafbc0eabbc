"""Prioritised experience replay, proportional variant (Schaul et al. 2016)."""

import dataclasses

import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay._internal import checks
from jaxreplay.methods import proportional
from jaxreplay.methods.parts.losses import LOSSES, named_loss
from jaxreplay.methods.proportional import INITIALS, NORMALISATIONS
from jaxreplay.option import option
from jaxreplay.sum_tree import SAMPLINGS
from jaxreplay.types import Array, Method, Sampler


@dataclasses.dataclass(frozen=True)
class PERConfig:
    """Hyperparameters of proportional prioritised replay."""

    alpha: float = option(
        0.6, "prioritisation exponent, 0 is uniform", "Schaul et al. 2016, Tab. 3"
    )
    beta: float = option(0.4, "initial importance-sampling exponent", "Schaul et al. 2016, Tab. 3")
    beta_end: float = option(
        1.0, "final importance-sampling exponent, reached linearly", "Schaul et al. 2016, Sec. 3.4"
    )
    beta_updates: int | None = option(
        None, "gradient steps until beta_end; none: the whole run", "Schaul et al. 2016, Sec. 3.4"
    )
    epsilon: float = option(1e-6, "added to |TD error| before the exponent; not given in the paper")
    normalise: str = option(
        "batch", "maximum that importance weights are divided by", "", NORMALISATIONS
    )
    sampling: str = option(
        "stratified",
        "one draw in each of B equal ranges of the total (systematic: at the same place in all)"
        ", or independent draws",
        "Schaul et al. 2016, App. B.2.1",
        SAMPLINGS,
    )
    initial: str = option(
        "max",
        "priority of new transitions: the largest so far, or that of their TD error now",
        "Schaul et al. 2016, Alg. 1; td: Brittain et al. 2019, Sec. 5.3",
        INITIALS,
    )
    clip: float | None = option(
        None, "largest |TD error| that counts for the priority; none: no limit"
    )
    weigh_actor: bool = option(
        False, "weigh the actor's loss like the critic's", "true: code of Novati & Koumoutsakos"
    )
    loss: str = option(
        "agent", "loss of the TD error, weighted; 'agent' takes the agent's own", "", LOSSES
    )

    def __post_init__(self) -> None:
        checks.check_alpha(self.alpha)
        checks.check_unit("beta", self.beta)
        checks.check_unit("beta_end", self.beta_end)
        if self.beta_updates is not None and self.beta_updates < 1:
            raise ValueError(f"beta_updates is {self.beta_updates}: it must be at least 1, or none")
        checks.check_not_negative("epsilon", self.epsilon)
        checks.check_choice("normalise", self.normalise, NORMALISATIONS)
        checks.check_choice("sampling", self.sampling, SAMPLINGS)
        checks.check_choice("initial", self.initial, INITIALS)
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip is {self.clip}: it must be positive, or none")
        named_loss(self.loss)


def sampler(config: PERConfig = PERConfig(), updates: int | None = None) -> Sampler:
    """Make the proportional PER sampler: P(i) = p_i^alpha / sum_j p_j^alpha, p = |td| + epsilon.

    Schaul et al. 2016, Eq. 1 and Alg. 1. Weights are `(N P(i))^-beta`, divided by their largest
    over the batch, over the buffer, or not at all; beta goes linearly to its end.

    Args:
      config: hyperparameters.
      updates: gradient steps of the run, over which beta moves if the config leaves it open;
        None with an open config keeps beta where it is.
    """
    horizon = config.beta_updates if config.beta_updates is not None else updates

    def priority(td_error: Array) -> Array:
        size = jnp.abs(td_error)
        if config.clip is not None:
            size = jnp.minimum(size, config.clip)
        return (size + config.epsilon) ** config.alpha

    return proportional.sampler(
        proportional.of_td_error(priority),
        proportional.importance(config.beta, config.beta_end, horizon, config.normalise),
        sampling=config.sampling,
        initial=config.initial,
        track_minimum=config.normalise == "buffer",
    )


def method(config: PERConfig = PERConfig(), updates: int | None = None) -> Method:
    """Make proportional PER: its sampler, and an objective weighted by importance."""
    objective = objectives.weighted(named_loss(config.loss), config.weigh_actor)
    return Method(sampler(config, updates), objective)
