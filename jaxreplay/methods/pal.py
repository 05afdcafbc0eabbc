"""Prioritised approximation loss, PAL (Fujimoto, Meger & Precup 2020)."""

import dataclasses

from jaxreplay import objectives
from jaxreplay.methods import lap, uniform
from jaxreplay.objectives import Form, Twin
from jaxreplay.option import Config, check_config_class, option
from jaxreplay.sampler import Method

_PAPER = "Fujimoto et al. 2020"

DISCRETE = lap.DISCRETE  # defaults for discrete actions: those of LAP, whose gradient PAL has


@dataclasses.dataclass(frozen=True)
class PALConfig(Config):
    """Hyperparameters of PAL; `PALConfig(**DISCRETE)` has the paper's values for Atari."""

    alpha: float = option(
        0.4, "exponent of the equivalent priority", f"{_PAPER}, Tab. 6", at_least=0, at_most=1
    )
    kappa: float = option(
        1.0, "|TD error| up to which the loss is quadratic", f"{_PAPER}, Tab. 6", above=0
    )
    twin: Twin = option(
        "own",
        "weigh twin critics by each one's own error (authors' code) or the largest (exact LAP)",
        f"{_PAPER}, Eq. 31",
    )
    loss: Form = option("pal", "PAL's loss, or the Huber loss as an ablation", f"{_PAPER}, C.1")
    divide: bool = option(
        True, "divide by lambda, LAP's mean priority; false is an ablation", f"{_PAPER}, C.1"
    )


@check_config_class
def method(config: PALConfig = PALConfig()) -> Method:
    """Return PAL: uniform sampling with a loss that has LAP's expected gradient.

    `objectives.pal` gives the equations (Fujimoto et al. 2020, Eq. 10 and 31). The loss replaces
    the agent's own loss of the TD error, so that the agent must have one.
    """
    loss = objectives.pal(config.alpha, config.kappa, config.twin, config.loss, config.divide)
    return Method(uniform.sampler(), objectives.plain(loss))
