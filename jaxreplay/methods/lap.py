"""Loss-adjusted prioritised replay, LAP (Fujimoto, Meger & Precup 2020)."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxreplay import objectives
from jaxreplay.methods.parts.options import SamplingOptions
from jaxreplay.methods.proportional import Proportional
from jaxreplay.option import check_config_class, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import Array

_PAPER = "Fujimoto et al. 2020"

# Defaults where actions are discrete (Fujimoto et al. 2020, Tab. 7 and App. D.2: Atari): TD errors
# of clipped rewards are far below 1, so that a kappa of 1 would make the sampling uniform.
DISCRETE: Mapping[str, Any] = MappingProxyType({"alpha": 0.6, "kappa": 0.01})


@dataclasses.dataclass(frozen=True)
class LAPConfig(SamplingOptions):
    """Hyperparameters of LAP; those of its paper for Atari are `LAPConfig(**DISCRETE)`.

    The loss's gradient is bounded by kappa: below 1, optimisers that divide by the gradient's size
    hardly notice, unless their epsilon is as large as the gradient (Adam's 1e-8 is not, 1.5e-4 is,
    and so is one that RMSProp adds within the root). The authors' code draws independently
    (`sampling="iid"`).
    """

    alpha: float = option(
        0.4, "prioritisation exponent, 0 is uniform", f"{_PAPER}, Tab. 6", at_least=0
    )
    kappa: float = option(
        1.0,
        "floor of |TD error| in priorities, and the Huber loss's",
        f"{_PAPER}, Tab. 6",
        above=0,
    )


@dataclasses.dataclass(frozen=True)
class LAPLeaf:
    """`max(|td|, kappa)^alpha` (Fujimoto et al. 2020, Eq. 9)."""

    alpha: float
    kappa: float

    def __call__(self, feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        """Return the leaves `[B]` of TD errors `[B]`."""
        del slots, ring
        return objectives.lap_priority(self.alpha, self.kappa)(feedback["td_error"])


@check_config_class
def sampler(config: LAPConfig = LAPConfig()) -> Proportional:
    """Return LAP's sampler: `P(i) ~ max(|td_i|, kappa)^alpha`, with weights of 1.

    Fujimoto et al. 2020, Eq. 9.
    """
    return Proportional(LAPLeaf(config.alpha, config.kappa), sampling=config.sampling)


@check_config_class
def method(config: LAPConfig = LAPConfig()) -> Method:
    """Return LAP: its sampler and the unweighted Huber loss."""
    return Method(sampler(config), objectives.plain(objectives.huber(config.kappa)))
