"""Options shared by several methods, whose configs inherit them.

Dataclasses list the fields of the last base first, so put the base with the most important options
last. `override` changes a default.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from jaxreplay import objectives
from jaxreplay._internal import schedules
from jaxreplay.methods.proportional import ImportanceWeights, Initial, Normalisation
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.sum_tree import Sampling

_PER = "Schaul et al. 2016"


@dataclasses.dataclass(frozen=True)
class SamplingOptions(Config):
    """Dependence between the draws of a batch from a sum tree."""

    sampling: Sampling = option(
        "stratified",
        "one draw in each of B equal ranges of the total priority, or at the same offset in each "
        "(systematic), or independent draws (iid)",
        f"{_PER}, App. B.2.1",
    )


@dataclasses.dataclass(frozen=True)
class PriorityOptions(SamplingOptions):
    """Priorities `(|td| + epsilon)^alpha`, and those of new transitions."""

    alpha: float = option(
        0.6, "prioritisation exponent, 0 is uniform", f"{_PER}, Tab. 3", at_least=0
    )
    epsilon: float = option(
        1e-6, "added to |TD error| before the exponent; the paper gives no value", at_least=0
    )
    initial: Initial = option(
        "max",
        "priority of new transitions: the largest so far, or from their current TD error",
        f"{_PER}, Alg. 1; td: Brittain et al. 2019, Sec. 5.3",
    )


@dataclasses.dataclass(frozen=True)
class ImportanceOptions(Config):
    """Importance weights, and the schedule of their exponent."""

    beta: float = option(
        0.4, "initial importance-sampling exponent", f"{_PER}, Tab. 3", at_least=0, at_most=1
    )
    beta_end: float = option(
        1.0,
        "final importance-sampling exponent, reached linearly",
        f"{_PER}, Sec. 3.4",
        at_least=0,
        at_most=1,
    )
    beta_updates: int | None = option(
        None,
        "gradient steps over which beta reaches beta_end; none: the whole run",
        f"{_PER}, Sec. 3.4",
        at_least=1,
        whole_run=True,
    )
    normalise: Normalisation = option(
        "batch", "divide importance weights by the largest of the batch or of the buffer, or not"
    )

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights with this schedule; beta is constant if `beta_updates` is None."""
        beta = schedules.linear(self.beta, self.beta_end, self.beta_updates)
        return ImportanceWeights(beta, self.normalise)


@dataclasses.dataclass(frozen=True)
class LossOptions(Config):
    """Loss of the TD error that the agent minimises."""

    loss: Literal["agent", "mse", "huber", "l1"] = option(
        "agent", "loss of the TD error, before importance weights; 'agent' keeps the agent's own"
    )

    @property
    def named_loss(self) -> objectives.Loss | None:
        """The loss function, or None for the agent's own. "huber" has kappa 1."""
        return _LOSSES[self.loss]


@dataclasses.dataclass(frozen=True)
class WeightedLossOptions(LossOptions):
    """Loss of the TD error, and the losses that importance weights apply to."""

    weigh_actor: bool = option(
        False,
        "apply importance weights to the actor's loss too, not just to the critic's",
        "true: Oh et al. 2021, Alg. 1; code of Novati & Koumoutsakos",
    )

    def objective(self) -> Objective:
        """Return the objective that weights losses by importance."""
        return objectives.weighted(self.named_loss, self.weigh_actor)


_LOSSES: Mapping[str, objectives.Loss | None] = MappingProxyType(
    {"agent": None, "mse": objectives.mse, "huber": objectives.huber(1.0), "l1": objectives.l1}
)
