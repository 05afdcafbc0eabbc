"""Prioritisation by reducible loss, ReLo (Sujit et al. 2022)."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay.methods import options
from jaxreplay.methods.proportional import Proportional, importance_weights
from jaxreplay.numerics import to_power
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import Array, Requirements

_PAPER = "Sujit et al. 2022"
_FEEDBACK = frozenset({"reducible_loss"})


@dataclasses.dataclass(frozen=True)
class ReLoConfig(Config):
    """Hyperparameters of ReLo."""

    alpha: float = option(0.6, options.ALPHA, f"code of {_PAPER}, MinAtar; 0.5 for SAC and Atari")
    epsilon: float = option(
        1e-5, "constant added to max(x, 0) if map is 'relu'", f"code of {_PAPER}", at_least=0
    )
    map: Literal["relu", "exp"] = option(
        "relu",
        "non-negative function of the reducible loss x: max(x, 0) + epsilon (relu), or x + 1 if "
        "x >= 0 and exp(x) otherwise (exp)",
        f"code of {_PAPER}: exp for Rainbow",
    )
    initial: options.Initial = option("max", options.INITIAL)
    maximum: options.Maximum = option("all_time", options.MAXIMUM)
    sampling: Sampling = option("stratified", options.SAMPLING)
    beta: float = option(0.4, options.BETA)
    beta_end: float = option(1.0, options.BETA_END)
    beta_updates: int | None = option(None, options.BETA_UPDATES)
    normalise: options.Normalisation = option("batch", options.NORMALISE)
    loss: LossName = option("agent", options.LOSS)
    weigh_actor: bool = option(False, options.WEIGH_ACTOR)


@dataclasses.dataclass(frozen=True)
class ReLoLeaf:
    """Computes priorities `f(x)^alpha`, where x is the loss minus the target network's loss.

    With `map` "relu", `f(x) = max(x, 0) + epsilon`; with "exp", f is exp below 0 and x + 1 above.
    """

    alpha: float
    map: Literal["relu", "exp"]
    epsilon: float

    def __call__(self, feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        loss = feedback["reducible_loss"]
        if self.map == "exp":
            return to_power(jnp.where(loss >= 0, loss + 1.0, jnp.exp(loss)), self.alpha)
        return to_power(jnp.maximum(loss, 0.0) + self.epsilon, self.alpha)


def sampler(config: ReLoConfig = ReLoConfig()) -> Proportional:
    """Return the ReLo sampler: PER with priorities from the feedback `reducible_loss`."""
    leaf = ReLoLeaf(config.alpha, config.map, config.epsilon)
    return Proportional(
        leaf,
        importance_weights(config),
        feedback=_FEEDBACK,
        sampling=config.sampling,
        initial=config.initial,
        maximum=config.maximum,
    )


def method(config: ReLoConfig = ReLoConfig()) -> Method:
    """Return ReLo: the sampler, and an objective that averages weighted critic losses.

    The objective requires that agents compute `reducible_loss`: the loss of a critic minus the loss
    of its target network, both for the same targets, averaged over critics.
    """
    objective = objectives.weighted(objectives.named(config.loss), config.weigh_actor)._replace(
        requires=Requirements(feedback=_FEEDBACK)
    )
    return Method(sampler(config), objective)
