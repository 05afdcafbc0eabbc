"""Prioritised experience replay, proportional variant (Schaul et al. 2016)."""

import dataclasses

import jax.numpy as jnp
import optax

from jaxreplay import objectives
from jaxreplay.methods import proportional
from jaxreplay.methods.losses import LOSSES, named_loss
from jaxreplay.methods.proportional import Odds
from jaxreplay.option import option
from jaxreplay.types import Array, Method, Sampler

NORMALISATIONS = ("batch", "buffer", "none")
SAMPLINGS = ("stratified", "iid")


@dataclasses.dataclass(frozen=True)
class PERConfig:
    """Hyperparameters of proportional prioritised replay."""

    alpha: float = option(
        0.6, "prioritisation exponent, 0 is uniform", "Schaul et al. 2016, Tab. 3"
    )
    beta: float = option(
        0.4, "initial importance-sampling exponent, annealed to 1", "Schaul et al. 2016, Tab. 3"
    )
    beta_updates: int | None = option(
        None, "gradient steps until beta is 1; none: the whole run", "Schaul et al. 2016, Sec. 3.4"
    )
    epsilon: float = option(1e-6, "added to |TD error| before the exponent; not given in the paper")
    normalise: str = option(
        "batch", "maximum that importance weights are divided by", "", NORMALISATIONS
    )
    sampling: str = option(
        "stratified",
        "one draw in each of B equal ranges of the total, or independent draws",
        "Schaul et al. 2016, App. B.2.1",
        SAMPLINGS,
    )
    clip: float | None = option(
        None, "largest |TD error| that counts for the priority; none: no limit"
    )
    loss: str = option(
        "agent", "loss of the TD error, weighted; 'agent' takes the agent's own", "", LOSSES
    )

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise ValueError(f"alpha is {self.alpha}: it must be 0 (uniform) or more")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta is {self.beta}: it must lie in [0, 1]")
        if self.beta_updates is not None and self.beta_updates < 1:
            raise ValueError(f"beta_updates is {self.beta_updates}: it must be at least 1, or none")
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon is {self.epsilon}: it must not be negative")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip is {self.clip}: it must be positive, or none")
        for name, choices in (("normalise", NORMALISATIONS), ("sampling", SAMPLINGS)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}: use one of {', '.join(choices)}"
                )
        named_loss(self.loss)


def sampler(config: PERConfig = PERConfig(), updates: int | None = None) -> Sampler:
    """Make the proportional PER sampler: P(i) = p_i^alpha / sum_j p_j^alpha, p = |td| + epsilon.

    Schaul et al. 2016, Eq. 1 and Alg. 1. Weights are `(N P(i))^-beta`, divided by their largest
    over the batch, over the buffer, or not at all; beta rises linearly to 1.

    Args:
      config: hyperparameters.
      updates: gradient steps of the run, over which beta rises if the config leaves it open;
        None with an open config keeps beta where it is.
    """
    horizon = config.beta_updates if config.beta_updates is not None else updates
    beta = optax.linear_schedule(config.beta, 1.0 if horizon else config.beta, horizon or 1)

    def leaf(td_error: Array) -> Array:
        size = jnp.abs(td_error)
        if config.clip is not None:
            size = jnp.minimum(size, config.clip)
        return (size + config.epsilon) ** config.alpha

    def weigh(odds: Odds) -> Array:
        exponent = -beta(odds.updates)
        if config.normalise == "buffer":
            return (odds.probability / odds.smallest) ** exponent
        weights = (odds.size * odds.probability) ** exponent
        return weights / weights.max() if config.normalise == "batch" else weights

    return proportional.sampler(
        leaf,
        weigh,
        stratified=config.sampling == "stratified",
        track_minimum=config.normalise == "buffer",
    )


def method(config: PERConfig = PERConfig(), updates: int | None = None) -> Method:
    """Make proportional PER: its sampler, and an objective weighted by importance."""
    objective = objectives.weighted(named_loss(config.loss))
    return Method(sampler(config, updates), objective)
