"""Loss-adjusted prioritised replay, LAP (Fujimoto, Meger & Precup 2020)."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxreplay import equivalence, objectives
from jaxreplay.methods import options
from jaxreplay.methods.proportional import Proportional
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import Array

_PAPER = "Fujimoto et al. 2020"

# Defaults for discrete actions (Fujimoto et al. 2020, Tab. 7 and App. D.2: Atari). With clipped
# rewards, TD errors are far below 1, so that kappa = 1 would result in uniform sampling.
DISCRETE: Mapping[str, Any] = MappingProxyType({"alpha": 0.6, "kappa": 0.01})


@dataclasses.dataclass(frozen=True)
class LAPConfig(Config):
    """Hyperparameters of LAP; `LAPConfig(**DISCRETE)` has the paper's values for Atari.

    Kappa bounds the gradient of the loss. Optimisers that normalise gradients (Adam, RMSProp)
    cancel a small bound unless epsilon is comparable to the gradient, such as 1.5e-4; Adam's
    default of 1e-8 is too small. The authors' code uses independent draws (`sampling="iid"`).
    """

    alpha: float = option(0.4, options.ALPHA, f"{_PAPER}, Tab. 6")
    kappa: float = option(1.0, options.KAPPA)
    initial: options.Initial = option("max", options.INITIAL)
    maximum: options.Maximum = option("all_time", options.MAXIMUM)
    sampling: Sampling = option("stratified", options.SAMPLING)


@dataclasses.dataclass(frozen=True)
class LAPLeaf:
    """Computes priorities `max(|td|, kappa)^alpha` (Fujimoto et al. 2020, Eq. 9)."""

    alpha: float
    kappa: float

    def __call__(self, feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        return equivalence.lap_priority(self.alpha, self.kappa)(feedback["td_error"])


def sampler(config: LAPConfig = LAPConfig()) -> Proportional:
    """Return the LAP sampler: `P(i) ~ max(|td_i|, kappa)^alpha` (Fujimoto et al. 2020, Eq. 9).

    Importance weights are 1. By default, new transitions receive the maximum of the priorities.
    """
    leaf = LAPLeaf(config.alpha, config.kappa)
    return Proportional(
        leaf, sampling=config.sampling, initial=config.initial, maximum=config.maximum
    )


def method(config: LAPConfig = LAPConfig()) -> Method:
    """Return LAP: the sampler, and an objective that averages Huber losses with the same kappa.

    The Huber loss replaces the agent's own loss on the TD error. All TD errors in its quadratic
    region have the same priority, so prioritisation introduces a bias only in its linear region.
    """
    return Method(sampler(config), objectives.plain(objectives.huber(config.kappa)))
