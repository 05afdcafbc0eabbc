"""Options that several methods share."""

import dataclasses
from typing import Literal

from jaxreplay.objectives import Loss, Objective, huber, l1, mse, weighted
from jaxreplay.option import Config, option


@dataclasses.dataclass(frozen=True)
class LossOptions(Config):
    """Option for the agent's loss on the TD error."""

    loss: Literal["agent", "mse", "huber", "l1"] = option(
        "agent", "loss on the TD error before importance weighting; 'agent' uses the agent's loss"
    )

    @property
    def named_loss(self) -> Loss | None:
        """Loss function named by `loss`, or None for the agent's own loss; "huber" has kappa 1."""
        return {"agent": None, "mse": mse, "huber": huber(1.0), "l1": l1}[self.loss]


@dataclasses.dataclass(frozen=True)
class WeightedLossOptions(LossOptions):
    """Options for the loss on the TD error and for the importance weighting of losses."""

    weigh_actor: bool = option(
        False,
        "apply importance weights to the actor's loss as well as to the critic's loss",
        "true: Oh et al. 2021, Alg. 1; code of Novati & Koumoutsakos",
    )

    def objective(self) -> Objective:
        """Return an objective that averages importance-weighted losses."""
        return weighted(self.named_loss, self.weigh_actor)
