"""Prioritised approximation loss, PAL (Fujimoto, Meger & Precup 2020)."""

import dataclasses

from jaxreplay import equivalence, objectives
from jaxreplay.equivalence import Form, Twin
from jaxreplay.methods import lap, uniform
from jaxreplay.option import Config, option
from jaxreplay.sampler import Method

_PAPER = "Fujimoto et al. 2020"

DISCRETE = lap.DISCRETE  # defaults of LAP, because LAP and PAL have equal expected gradients


@dataclasses.dataclass(frozen=True)
class PALConfig(Config):
    """Hyperparameters of PAL; `PALConfig(**DISCRETE)` has the paper's values for Atari."""

    alpha: float = option(
        0.4, "exponent of the equivalent LAP priority", f"{_PAPER}, Tab. 6", at_least=0, at_most=1
    )
    kappa: float = option(
        1.0, "|TD error| up to which the loss is quadratic", f"{_PAPER}, Tab. 6", above=0
    )
    twin: Twin = option(
        "own",
        "weight the loss of each twin critic by its own TD error (authors' code) or by the largest "
        "TD error (exact LAP)",
        f"{_PAPER}, Eq. 31",
    )
    loss: Form = option("pal", "PAL loss, or Huber loss as an ablation", f"{_PAPER}, C.1")
    divide: bool = option(
        True, "divide losses by lambda, the mean LAP priority; false: ablation", f"{_PAPER}, C.1"
    )


def method(config: PALConfig = PALConfig()) -> Method:
    """Return PAL: uniform sampling with a loss whose expected gradient equals that of LAP.

    See `equivalence.pal` for the equations (Fujimoto et al. 2020, Eq. 10 and 31). The loss replaces
    the agent's own loss on the TD error; agents without such a loss are not supported.
    """
    loss = equivalence.pal(config.alpha, config.kappa, config.twin, config.loss, config.divide)
    return Method(uniform.sampler(), objectives.plain(loss))
