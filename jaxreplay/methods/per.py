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

    alpha: float = option(0.6, "prioritisation exponent, 0 is uniform", "Schaul et al. 2016, Tab. 3")
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


def sampler(config: PERConfig = PERConfig(), updates: int | None = None) -> Sampler:
    """Make the proportional PER sampler: P(i) = p_i^alpha / sum_j p_j^alpha, p = |td| + epsilon.

    Schaul et al. 2016, Eq. 1 and Alg. 1. Weights are `(N P(i))^-beta`, divided by their largest
    over the batch, over the buffer, or not at all; beta rises linearly to 1.

    Args:
      config: hyperparameters.
      updates: gradient steps of the run, over which beta rises if the config leaves it open;
        None with an open config keeps beta where it is.

    Raises:
      ValueError: a hyperparameter is outside its range.
    """
    check(config)
    horizon = config.beta_updates if config.beta_updates is not None else updates
    beta = optax.linear_schedule(config.beta, 1.0, horizon or 0)

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
    return Method(sampler(config, updates), objective, needs=frozenset({"td_error"}))


def check(config: PERConfig) -> None:
    """Validate hyperparameters.

    Raises:
      ValueError: one line that names the first one out of range.
    """
    if not config.alpha >= 0:
        raise ValueError(f"alpha is {config.alpha}: it must be 0 (uniform) or more")
    if not 0 <= config.beta <= 1:
        raise ValueError(f"beta is {config.beta}: it must lie in [0, 1]")
    if config.beta_updates is not None and config.beta_updates < 1:
        raise ValueError(f"beta_updates is {config.beta_updates}: it must be at least 1, or none")
    if not config.epsilon >= 0:
        raise ValueError(f"epsilon is {config.epsilon}: it must not be negative")
    if config.clip is not None and not config.clip > 0:
        raise ValueError(f"clip is {config.clip}: it must be positive, or none")
    for name, choices in (("normalise", NORMALISATIONS), ("sampling", SAMPLINGS)):
        if getattr(config, name) not in choices:
            raise ValueError(
                f"{name} is {getattr(config, name)!r}: use one of {', '.join(choices)}"
            )
