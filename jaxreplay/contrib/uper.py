"""Uncertainty-prioritised experience replay, UPER (Carrasco-Davis et al. 2025)."""

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

_CODE = "code of Carrasco-Davis et al. 2025"
_FEEDBACK = frozenset({"epistemic", "aleatoric", "target_error"})


@dataclasses.dataclass(frozen=True)
class UPERConfig(Config):
    """Hyperparameters of UPER."""

    priority: Literal["gain", "epistemic"] = option(
        "gain",
        "p: the information gain (gain), or the epistemic uncertainty alone (epistemic)",
        f"gain: {_CODE}",
    )
    floor: float = option(1e-4, "lower bound on the aleatoric uncertainty", "ours", above=0)
    epsilon: float = option(1e-6, "constant added to p before exponentiation", "ours", at_least=0)
    alpha: float = option(0.6, options.ALPHA, _CODE)
    initial: options.Initial = option("max", options.INITIAL)
    maximum: options.Maximum = option("all_time", options.MAXIMUM)
    sampling: Sampling = option("stratified", options.SAMPLING)
    beta: float = option(0.4, options.BETA, _CODE)
    beta_end: float = option(1.0, options.BETA_END, _CODE)
    beta_updates: int | None = option(None, options.BETA_UPDATES)
    normalise: options.Normalisation = option("batch", options.NORMALISE)
    loss: LossName = option("agent", options.LOSS)
    weigh_actor: bool = option(False, options.WEIGH_ACTOR)


def information_gain(
    target_error: Array, epistemic: Array, aleatoric: Array, floor: float = 1e-4
) -> Array:
    """Return `ln(1 + (target_error + epistemic) / max(aleatoric, floor)) / 2` `[...]`, in nats.

    This is the information that one more Gaussian sample gives about the mean, for a prior with the
    variance `target_error + epistemic` and noise with the variance `aleatoric` (Carrasco-Davis et
    al. 2025, Eq. 11).

    Args:
      target_error: `[...]`, squared TD errors of the mean prediction.
      epistemic: `[...]`, epistemic uncertainties, as variances.
      aleatoric: `[...]`, aleatoric uncertainties, as variances.
      floor: lower bound on `aleatoric`, positive.

    Example:
      >>> round(float(information_gain(jnp.float32(1.0), jnp.float32(0.25), jnp.float32(2 / 3))), 5)
      0.52803
    """
    reducible = jnp.maximum(target_error + epistemic, 0.0)
    return 0.5 * jnp.log1p(reducible / jnp.maximum(aleatoric, floor))


@dataclasses.dataclass(frozen=True)
class UPERLeaf:
    """Computes `(p + epsilon)^alpha` for information gains or epistemic uncertainties p."""

    priority: Literal["gain", "epistemic"]
    alpha: float
    floor: float
    epsilon: float

    def __call__(self, feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        epistemic = feedback["epistemic"]
        priority = jnp.maximum(epistemic, 0.0)
        if self.priority == "gain":
            priority = information_gain(
                feedback["target_error"], epistemic, feedback["aleatoric"], self.floor
            )
        return to_power(priority + self.epsilon, self.alpha)


def sampler(config: UPERConfig = UPERConfig()) -> Proportional:
    """Return the UPER sampler: PER with priorities from the feedback on uncertainty."""
    return Proportional(
        UPERLeaf(config.priority, config.alpha, config.floor, config.epsilon),
        importance_weights(config),
        feedback=_FEEDBACK,
        sampling=config.sampling,
        initial=config.initial,
        maximum=config.maximum,
    )


def method(config: UPERConfig = UPERConfig()) -> Method:
    """Return UPER: the sampler, and an objective that averages weighted critic losses.

    The objective requires that agents compute `epistemic`, `aleatoric` and `target_error`:
    variances of an ensemble of return distributions, and the squared error of their mean.

    Args:
      config: options; `config.for_run(updates)` anneals beta over `updates` gradient steps.
    """
    objective = objectives.weighted(objectives.named(config.loss), config.weigh_actor)._replace(
        requires=Requirements(feedback=_FEEDBACK)
    )
    return Method(sampler(config), objective)
