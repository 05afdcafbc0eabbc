"""Losses of the TD error, equivalences between losses and sampling schemes, and objectives.

A loss maps TD errors, `[N, B]` of N critics or of any other shape, to losses of the same shape. All
losses are even functions, so the sign convention of the TD error does not matter.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp

from jaxreplay._internal.arguments import Bounds, check_choice
from jaxreplay._internal.numerics import to_power
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.types import DENSITY, Array, Requirements, Sample, Trust

Loss = Callable[[Array], Array]
Priority = Callable[[Array], Array]
Twin = Literal["own", "max"]
Form = Literal["pal", "huber"]


def mse(td: Array) -> Array:
    """Return `td^2 / 2`, with the gradient `td`."""
    return 0.5 * jnp.square(td)


def l1(td: Array) -> Array:
    """Return `|td|`, with the gradient `sign(td)`."""
    return jnp.abs(td)


def huber(kappa: float = 1.0) -> Loss:
    """Return the Huber loss (Fujimoto et al. 2020, Eq. 2).

    `td^2 / 2` if `|td| <= kappa`, and `kappa * (|td| - kappa / 2)` otherwise.

    Args:
      kappa: TD error at which the loss becomes linear, positive.

    Raises:
      ValueError: `kappa` is not positive.

    Example:
      >>> huber(1.0)(jnp.array([0.5, 2.0])).tolist()
      [0.125, 1.5]
    """
    Bounds(above=0).check("kappa", kappa)

    def loss(td: Array) -> Array:
        size = jnp.abs(td)
        return jnp.where(size <= kappa, 0.5 * jnp.square(td), kappa * (size - 0.5 * kappa))

    return loss


def power(exponent: float, scale: float | Array = 1.0) -> Loss:
    """Return the loss `scale * |td|^exponent`, with a gradient of 0 at 0.

    Args:
      exponent: exponent, at least 0.
      scale: factor, at least 0.

    Raises:
      ValueError: `exponent` or `scale` is negative or not finite.
    """
    Bounds(at_least=0).check("exponent", exponent)
    Bounds(at_least=0).check("scale", cast(float, scale))

    def loss(td: Array) -> Array:
        size = jnp.abs(td)
        nonzero = size > 0
        return scale * jnp.where(nonzero, jnp.where(nonzero, size, 1.0) ** exponent, 0.0)

    return loss


def lap_priority(alpha: float, kappa: float) -> Priority:
    """Return the priority function of LAP, `max(|td|, kappa)^alpha` (Fujimoto et al. 2020, Eq. 9).

    Args:
      alpha: priority exponent, at least 0.
      kappa: lower bound of the absolute TD error, at least 0.

    Raises:
      ValueError: an argument is negative or not finite.
    """
    for name, value in {"alpha": alpha, "kappa": kappa}.items():
        Bounds(at_least=0).check(name, value)
    return lambda td: to_power(jnp.maximum(jnp.abs(td), kappa), alpha)


def pal(
    alpha: float = 0.4,
    kappa: float = 1.0,
    twin: Twin = "own",
    form: Form = "pal",
    divide: bool = True,
) -> Loss:
    """Return the PAL loss, which under uniform sampling has the expected gradient of LAP.

    `kappa^alpha td^2 / (2 lambda)` if `|td| <= kappa`, and
    `kappa |td|^(1 + alpha) / ((1 + alpha) lambda)` otherwise (Fujimoto et al. 2020, Eq. 10 and 31).
    Lambda is the mean of LAP's priority over the batch, without gradients. The priority of a
    transition is that of the largest absolute TD error among its critics.

    Args:
      alpha: exponent of the equivalent priority, in [0, 1].
      kappa: TD error above which the loss is no longer quadratic, positive.
      twin: "own" evaluates the loss of each critic at its own TD error, as in the authors' code;
        "max" multiplies the Huber loss of each critic by the priority of the transition. With
        several critics, only "max" equals LAP in expectation.
      form: "pal", or "huber" for the paper's ablation with the Huber loss in its place.
      divide: whether to divide by lambda; False is the paper's ablation.

    Returns:
      A loss of TD errors `[N, B]` or `[B]`; the last axis is the batch.

    Raises:
      ValueError: an argument is out of range.
    """
    Bounds(at_least=0, at_most=1).check("alpha", alpha)
    Bounds(above=0).check("kappa", kappa)
    check_choice("twin", twin, get_args(Twin))
    check_choice("form", form, get_args(Form))
    priority = lap_priority(alpha, kappa)
    inner_huber = huber(kappa)

    def own(td: Array) -> Array:
        size = jnp.abs(td)
        outer = jnp.maximum(size, kappa)  # for a finite gradient of the unused branch at 0
        return jnp.where(
            size <= kappa,
            0.5 * kappa**alpha * jnp.square(td),
            kappa * outer ** (1.0 + alpha) / (1.0 + alpha),
        )

    @with_default_promotion
    def loss(td: Array) -> Array:
        largest = jnp.abs(td).max(axis=0) if td.ndim > 1 else jnp.abs(td)
        weight = jax.lax.stop_gradient(priority(largest))  # [B]
        if form == "huber":
            unnormalised = inner_huber(td)
        else:
            unnormalised = own(td) if twin == "own" else weight * inner_huber(td)
        return unnormalised / weight.mean() if divide else unnormalised

    return loss


# --- Equivalent losses under prioritised and uniform sampling --------------------------------


def uniform_equivalent(loss: Loss, priority: Priority) -> Loss:
    """Return the loss for uniform sampling with the expected gradient of `loss` under `priority`.

    `L(td_i) = priority(td_i) * loss(td_i) / lambda`, with lambda the mean priority, and without
    gradients of either (Fujimoto et al. 2020, Corollary 1). It is exact for the TD errors of the
    whole buffer. For those of a batch, 1 / lambda has a bias of order 1/B.

    Args:
      loss: loss under prioritised sampling.
      priority: function of TD errors that returns unnormalised sampling probabilities.
    """

    def equivalent(td: Array) -> Array:
        weight = jax.lax.stop_gradient(priority(td))
        return weight / weight.mean() * loss(td)

    return equivalent


def minimal_variance_priority(loss: Loss) -> Priority:
    """Return the priority function `|d loss / d td|` (Fujimoto et al. 2020, Corollary 2).

    With it, the L1 loss times the mean priority has the expected gradient of `loss` under uniform
    sampling, and the least variance of all pairs of a loss and a priority that do (Theorem 2).
    `prioritised_equivalent` returns both.
    """

    def priority(td: Array) -> Array:
        return jnp.abs(jax.grad(lambda x: loss(x).sum())(td))

    return priority


def prioritised_equivalent(loss: Loss) -> tuple[Loss, Priority]:
    """Return the pair (loss, priority) of least variance with the expected gradient of `loss`.

    The priority is `|d loss / d td|`, and the loss is L1 times the mean priority (Fujimoto et al.
    2020, Corollary 2 and Theorem 2). The expected gradient under this priority is that of `loss`
    under uniform sampling.

    The returned loss averages the priorities of its argument, which must be the TD errors of the
    whole buffer or of a uniform sample. Do not apply it to a batch drawn by priority: the mean of
    such a batch estimates `sum_i p_i^2 / sum_i p_i` instead of `sum_i p_i / N`, and the gradient is
    too large. Multiply `l1` by the harmonic mean of the priorities instead,
    `1 / (1 / priority(td)).mean()`, without gradients and if no priority is 0: under these draws,
    1 / p has the mean `N / sum_i p_i`. On a batch its bias is of order 1/B.

    Example:
      >>> loss, priority = prioritised_equivalent(mse)
      >>> loss(jnp.array([1.0, -3.0])).tolist(), priority(jnp.array([1.0, -3.0])).tolist()
      ([2.0, 6.0], [1.0, 3.0])
    """
    priority = minimal_variance_priority(loss)

    def scaled_l1(td: Array) -> Array:
        return jax.lax.stop_gradient(priority(td).mean()) * l1(td)

    return scaled_l1, priority


def per_equivalent(alpha: float, beta: float, tau: float = 2.0) -> Loss:
    """Return the loss under uniform sampling that proportional PER minimises.

    `eta N / c * |td|^c` with `c = tau + alpha - alpha beta` and
    `eta = min_j |td_j|^(alpha beta) / sum_j |td_j|^alpha`, without gradients of eta (Fujimoto et
    al. 2020, Theorem 3). It is for PER with the loss `|td|^tau / tau`, priorities `|td|^alpha` and
    importance weights divided by their maximum over the same TD errors.

    Args:
      alpha: priority exponent, at least 0.
      beta: exponent of the importance weights, in [0, 1].
      tau: exponent of PER's loss, positive; 2 is the mean squared error, 1 is L1.

    Raises:
      ValueError: an argument is out of range.
    """
    Bounds(at_least=0).check("alpha", alpha)
    Bounds(at_least=0, at_most=1).check("beta", beta)
    Bounds(above=0).check("tau", tau)
    exponent = tau + alpha - alpha * beta

    def loss(td: Array) -> Array:
        size = jax.lax.stop_gradient(jnp.abs(td))
        scale = size.min() ** (alpha * beta) / (size**alpha).mean()
        return power(exponent, scale / exponent)(td)

    return loss


# --- Objectives ---------------------------------------------------------------------------------


Reduce = Callable[[Array, Sample, Trust | None], Array]  # losses [B] of a batch to a loss []


class Objective(NamedTuple):
    """The part of a replay method that changes the losses of an agent.

    An agent computes its critic loss as `critic(error(td_error).sum(axis=0), sample, trust)`, and
    its actor loss as `actor(losses, sample, trust)`.
    """

    error: Loss | None  # losses [N, B] of the TD errors [N, B] of N critics; None keeps the loss of
    # the agent: Huber with kappa 1 for DQN, squared for TD3 and SAC
    critic: Reduce  # trust is None for agents without a density
    actor: Reduce
    requires: Requirements = Requirements()


def check_no_density(objective: Objective | None, reason: str) -> None:
    """Raise ValueError if an objective requires `Trust`, for agents without a density.

    Args:
      objective: objective given to the agent, or None.
      reason: beginning of the message, such as "DQN's policy has no density".
    """
    if objective is not None and objective.requires.density:
        raise ValueError(
            f"{reason}, and this replay method needs {DENSITY}: use an agent with one, or another "
            "replay method"
        )


def _mean(loss: Array, sample: Sample, trust: Trust | None) -> Array:
    del sample, trust
    return loss.mean()


def _weighted_mean(loss: Array, sample: Sample, trust: Trust | None) -> Array:
    del trust
    return (sample.weights * loss).mean()


def plain(error: Loss | None = None) -> Objective:
    """Return the objective with unweighted means over the batch.

    Args:
      error: loss of the TD errors; None keeps that of the agent.
    """
    return Objective(error=error, critic=_mean, actor=_mean)


def weighted(error: Loss | None = None, actor: bool = False) -> Objective:
    """Return the objective that multiplies losses of the critic by `Sample.weights`.

    Args:
      error: loss of the TD errors; None keeps that of the agent.
      actor: whether to weight the loss of the actor, too, as in the code of Novati & Koumoutsakos
        2019. It is unweighted in TD3 with PER of Fujimoto et al. 2020.
    """
    return Objective(error=error, critic=_weighted_mean, actor=_weighted_mean if actor else _mean)
