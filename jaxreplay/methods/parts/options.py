"""Config base classes with options that several methods share.

Dataclasses list the fields of the last base class first, so put the base class with the most
important options last. Use `override` to change a default.
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
    """Option for the dependence between the draws of a batch from a sum tree."""

    sampling: Sampling = option(
        "stratified",
        "one draw from each of B equal ranges of the total priority (stratified), at the same "
        "offset in each range (systematic), or independent draws (iid)",
        f"{_PER}, App. B.2.1",
    )


@dataclasses.dataclass(frozen=True)
class PriorityOptions(SamplingOptions):
    """Options for priorities `(|td| + epsilon)^alpha` and the priority of new transitions."""

    alpha: float = option(
        0.6, "prioritisation exponent; 0 is uniform", f"{_PER}, Tab. 3", at_least=0
    )
    epsilon: float = option(
        1e-6, "added to |TD error| before exponentiation; the paper gives no value", at_least=0
    )
    initial: Initial = option(
        "max",
        "priority of new transitions: the running maximum, or computed from their TD error",
        f"{_PER}, Alg. 1; td: Brittain et al. 2019, Sec. 5.3",
    )


@dataclasses.dataclass(frozen=True)
class ImportanceOptions(Config):
    """Options for importance weights and the schedule of their exponent."""

    beta: float = option(
        0.4, "initial importance-sampling exponent", f"{_PER}, Tab. 3", at_least=0, at_most=1
    )
    beta_end: float = option(
        1.0,
        "final importance-sampling exponent of the linear schedule",
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
        "batch", "divide importance weights by their batch maximum or buffer maximum, or not at all"
    )

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights; their exponent beta is constant if `beta_updates` is None."""
        beta = schedules.linear(self.beta, self.beta_end, self.beta_updates)
        return ImportanceWeights(beta, self.normalise)


@dataclasses.dataclass(frozen=True)
class LossOptions(Config):
    """Option for the agent's loss on the TD error."""

    loss: Literal["agent", "mse", "huber", "l1"] = option(
        "agent", "loss on the TD error before importance weighting; 'agent' uses the agent's loss"
    )

    @property
    def named_loss(self) -> objectives.Loss | None:
        """Loss function named by `loss`, or None for the agent's own loss; "huber" has kappa 1."""
        return _LOSSES[self.loss]


@dataclasses.dataclass(frozen=True)
class WeightedLossOptions(LossOptions):
    """Options for the loss on the TD error and for importance weighting of losses."""

    weigh_actor: bool = option(
        False,
        "apply importance weights to the actor's loss as well as to the critic's loss",
        "true: Oh et al. 2021, Alg. 1; code of Novati & Koumoutsakos",
    )

    def objective(self) -> Objective:
        """Return an objective that averages importance-weighted losses."""
        return objectives.weighted(self.named_loss, self.weigh_actor)


_LOSSES: Mapping[str, objectives.Loss | None] = MappingProxyType(
    {"agent": None, "mse": objectives.mse, "huber": objectives.huber(1.0), "l1": objectives.l1}
)
