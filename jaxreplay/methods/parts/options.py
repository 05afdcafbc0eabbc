"""Options that several methods share: a method's config has them by inheritance.

Dataclasses list the fields of the last base first, so the base whose options matter most stands
last. A method with another default says so with `override`.
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
    """How a batch is drawn from a tree of priorities."""

    sampling: Sampling = option(
        "stratified",
        "one draw in each of B equal ranges of the total (systematic: at the same place in all)"
        ", or independent draws",
        f"{_PER}, App. B.2.1",
    )


@dataclasses.dataclass(frozen=True)
class PriorityOptions(SamplingOptions):
    """How TD errors become priorities, `(|td| + epsilon)^alpha`, and what new transitions get."""

    alpha: float = option(
        0.6, "prioritisation exponent, 0 is uniform", f"{_PER}, Tab. 3", at_least=0
    )
    epsilon: float = option(
        1e-6, "added to |TD error| before the exponent; not given in the paper", at_least=0
    )
    initial: Initial = option(
        "max",
        "priority of new transitions: the largest so far, or that of their TD error now",
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
        "gradient steps until beta_end; none: the whole run",
        f"{_PER}, Sec. 3.4",
        at_least=1,
        whole_run=True,
    )
    normalise: Normalisation = option("batch", "maximum that importance weights are divided by")

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights with this schedule of beta; beta is constant without a horizon."""
        beta = schedules.linear(self.beta, self.beta_end, self.beta_updates)
        return ImportanceWeights(beta, self.normalise)


@dataclasses.dataclass(frozen=True)
class LossOptions(Config):
    """Which loss of the TD error the agent minimises."""

    loss: Literal["agent", "mse", "huber", "l1"] = option(
        "agent", "loss of the TD error, before any weights; 'agent' takes the agent's own"
    )

    @property
    def named_loss(self) -> objectives.Loss | None:
        """The loss itself; None leaves it to the agent. "huber" has kappa 1."""
        return _LOSSES[self.loss]


@dataclasses.dataclass(frozen=True)
class WeightedLossOptions(LossOptions):
    """Which loss, and whose gradients are weighted."""

    weigh_actor: bool = option(
        False,
        "weigh the actor's loss like the critic's",
        "true: Oh et al. 2021, Alg. 1; code of Novati & Koumoutsakos",
    )

    def objective(self) -> Objective:
        """Make the objective that is weighted by importance."""
        return objectives.weighted(self.named_loss, self.weigh_actor)


_LOSSES: Mapping[str, objectives.Loss | None] = MappingProxyType(
    {
        "agent": None,
        "mse": objectives.mse,
        "huber": objectives.huber(1.0),
        "l1": objectives.l1,
    }
)
