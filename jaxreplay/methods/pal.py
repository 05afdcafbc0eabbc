"""Prioritised approximation loss, PAL (Fujimoto, Meger & Precup 2020)."""

import dataclasses

from jaxreplay import objectives
from jaxreplay.methods import lap, uniform
from jaxreplay.objectives import Form, Twin
from jaxreplay.option import Config, check_config_class, option
from jaxreplay.sampler import Method

_PAPER = "Fujimoto et al. 2020"

DISCRETE = lap.DISCRETE  # defaults where actions are discrete: the same, as the loss stands for LAP


@dataclasses.dataclass(frozen=True)
class PALConfig(Config):
    """Hyperparameters of PAL; those of its paper for Atari are `PALConfig(**DISCRETE)`."""

    alpha: float = option(
        0.4, "exponent of the equivalent priority", f"{_PAPER}, Tab. 6", at_least=0, at_most=1
    )
    kappa: float = option(
        1.0, "TD error at which the loss leaves the quadratic", f"{_PAPER}, Tab. 6", above=0
    )
    twin: Twin = option(
        "own",
        "twin critics: weigh by each one's own error (authors' code) or the largest (exact LAP)",
        f"{_PAPER}, Eq. 31",
    )
    loss: Form = option(
        "pal", "ablation: PAL's loss, or the Huber loss in its place", f"{_PAPER}, C.1"
    )
    divide: bool = option(True, "ablation: divide by lambda, LAP's mean priority", f"{_PAPER}, C.1")


@check_config_class
def method(config: PALConfig = PALConfig()) -> Method:
    """Return PAL: uniform sampling, with the loss whose expected gradient is LAP's."""
    loss = objectives.pal(config.alpha, config.kappa, config.twin, config.loss, config.divide)
    return Method(uniform.sampler(), objectives.plain(loss))
