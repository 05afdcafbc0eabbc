"""Loss-adjusted prioritised replay, LAP (Fujimoto, Meger & Precup 2020)."""

import dataclasses

import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay._internal import checks
from jaxreplay.methods import proportional
from jaxreplay.option import option
from jaxreplay.sum_tree import SAMPLINGS
from jaxreplay.types import Method, Sampler


@dataclasses.dataclass(frozen=True)
class LAPConfig:
    """Hyperparameters of LAP; the paper's Atari setting is alpha 0.6, kappa 0.01 (Tab. 7)."""

    alpha: float = option(
        0.4, "prioritisation exponent, 0 is uniform", "Fujimoto et al. 2020, Tab. 6"
    )
    kappa: float = option(
        1.0,
        "floor of |TD error| in priorities, and the Huber loss's",
        "Fujimoto et al. 2020, Tab. 6",
    )
    sampling: str = option(
        "stratified",
        "one draw in each of B equal ranges of the total (systematic: at the same place in all)"
        ", or independent draws (the authors' code)",
        "Schaul et al. 2016, App. B.2.1",
        SAMPLINGS,
    )

    def __post_init__(self) -> None:
        checks.check_alpha(self.alpha)
        checks.check_positive("kappa", self.kappa)
        checks.check_choice("sampling", self.sampling, SAMPLINGS)


def sampler(config: LAPConfig = LAPConfig()) -> Sampler:
    """Make LAP's sampler: P(i) ~ max(|td_i|, kappa)^alpha, weights 1 (Fujimoto 2020, Eq. 9)."""
    return proportional.sampler(
        proportional.of_td_error(objectives.lap_priority(config.alpha, config.kappa)),
        lambda odds: jnp.ones_like(odds.probability),
        sampling=config.sampling,
    )


def method(config: LAPConfig = LAPConfig(), updates: int | None = None) -> Method:
    """Make LAP: its sampler and the unweighted Huber loss; `updates` is not used."""
    del updates
    objective = objectives.plain(objectives.huber(config.kappa))
    return Method(sampler(config), objective)
