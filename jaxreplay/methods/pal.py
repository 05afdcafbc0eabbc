"""Prioritised approximation loss, PAL (Fujimoto, Meger & Precup 2020)."""

import dataclasses

from jaxreplay import objectives
from jaxreplay.methods import uniform
from jaxreplay.option import option
from jaxreplay.types import Method

TWINS = ("own", "max")


@dataclasses.dataclass(frozen=True)
class PALConfig:
    """Hyperparameters of PAL; the paper's Atari setting is alpha 0.6, kappa 0.01 (Tab. 7)."""

    alpha: float = option(
        0.4, "exponent of the equivalent priority", "Fujimoto et al. 2020, Tab. 6"
    )
    kappa: float = option(
        1.0, "TD error at which the loss leaves the quadratic", "Fujimoto et al. 2020, Tab. 6"
    )
    twin: str = option(
        "own",
        "twin critics: weigh by each one's own error (authors' code) or the largest (exact LAP)",
        "Fujimoto et al. 2020, Eq. 31",
        TWINS,
    )
    loss: str = option(
        "pal",
        "ablation: PAL's loss, or the Huber loss in its place",
        "Fujimoto et al. 2020, C.1",
        ("pal", "huber"),
    )
    divide: bool = option(
        True, "ablation: divide by lambda, LAP's mean priority", "Fujimoto et al. 2020, C.1"
    )

    def __post_init__(self) -> None:
        _loss(self)  # refuses what is out of range


def _loss(config: PALConfig) -> objectives.Loss:
    return objectives.pal(config.alpha, config.kappa, config.twin, config.loss, config.divide)


def method(config: PALConfig = PALConfig(), updates: int | None = None) -> Method:
    """Make PAL: uniform sampling, the loss with LAP's expected gradient; `updates` is not used."""
    del updates
    return Method(uniform.sampler(), objectives.plain(_loss(config)))
