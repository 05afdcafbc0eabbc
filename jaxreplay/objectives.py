"""Losses of the TD error, and how a loss and a sampling scheme stand for one another.

A loss maps TD errors `[N, B]` (or any shape) element-wise to losses of the same shape. All losses
here are even in the TD error, so its sign convention does not matter.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp

from jaxreplay._internal.arguments import Bounds, check_choice
from jaxreplay._internal.numerics import to_power
from jaxreplay._internal.tracing import as_by_default
from jaxreplay.types import DENSITY, Array, Requirements, Sample, Trust

Loss = Callable[[Array], Array]
Priority = Callable[[Array], Array]
Twin = Literal["own", "max"]
Form = Literal["pal", "huber"]


def mse(td: Array) -> Array:
    """Return half the squared error, whose gradient is the TD error itself."""
    return 0.5 * jnp.square(td)


def l1(td: Array) -> Array:
    """Return the absolute error, whose gradient is the sign."""
    return jnp.abs(td)


def huber(kappa: float = 1.0) -> Loss:
    """Make the Huber loss: half squared up to `kappa`, linear beyond (Fujimoto et al. 2020, Eq. 2).

    Raises:
      ValueError: `kappa` is not positive.
    """
    Bounds(above=0).check("kappa", kappa)

    def loss(td: Array) -> Array:
        size = jnp.abs(td)
        return jnp.where(size <= kappa, 0.5 * jnp.square(td), kappa * (size - 0.5 * kappa))

    return loss


def power(exponent: float, scale: float | Array = 1.0) -> Loss:
    """Make `scale * |td|^exponent`, with a gradient of 0 at 0 for exponents above 1.

    Raises:
      ValueError: `exponent` or `scale` is negative, or no finite number.
    """
    Bounds(at_least=0).check("exponent", exponent)
    Bounds(at_least=0).check("scale", cast(float, scale))

    def loss(td: Array) -> Array:
        size = jnp.abs(td)
        nonzero = size > 0
        return scale * jnp.where(nonzero, jnp.where(nonzero, size, 1.0) ** exponent, 0.0)

    return loss


def lap_priority(alpha: float, kappa: float) -> Priority:
    """Make LAP's priority `max(|td|, kappa)^alpha` (Fujimoto et al. 2020, Eq. 9).

    Raises:
      ValueError: an argument is negative, or no finite number.
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
    """Make PAL, the uniform-sampling loss whose expected gradient is LAP's.

    Fujimoto et al. 2020, Eq. 10 and 31: `(1/lambda) * (1/2 kappa^alpha td^2)` up to `kappa`, and
    `(1/lambda) * kappa |td|^(1+alpha) / (1+alpha)` beyond, with lambda the batch mean of LAP's
    priority, held constant under differentiation. With N critics the priority is that of the
    largest error over the critics.

    Args:
      alpha: exponent of the equivalent priority, in [0, 1].
      kappa: where the loss turns from quadratic to the power 1 + alpha; positive.
      twin: "own" lets each critic's own error shape its loss, as the authors' code does; "max"
        weighs every critic by the priority of the largest error, which is what makes PAL equal
        LAP in expectation with more than one critic.
      form: "pal", or "huber" for the paper's ablation with the Huber loss in its place.
      divide: by lambda; False is the paper's ablation without it.

    Returns:
      A loss of `[N, B]` (or `[B]`) TD errors; the last axis is the batch.

    Raises:
      ValueError: an argument is outside its range.
    """
    Bounds(at_least=0, at_most=1).check("alpha", alpha)
    Bounds(above=0).check("kappa", kappa)
    check_choice("twin", twin, get_args(Twin))
    check_choice("form", form, get_args(Form))
    priority = lap_priority(alpha, kappa)
    inner_huber = huber(kappa)

    def own(td: Array) -> Array:
        size = jnp.abs(td)
        outer = jnp.maximum(size, kappa)  # keeps the unused branch's gradient finite at 0
        return jnp.where(
            size <= kappa,
            0.5 * kappa**alpha * jnp.square(td),
            kappa * outer ** (1.0 + alpha) / (1.0 + alpha),
        )

    @as_by_default
    def loss(td: Array) -> Array:
        largest = jnp.abs(td).max(axis=0) if td.ndim > 1 else jnp.abs(td)
        weight = jax.lax.stop_gradient(priority(largest))  # [B]
        if form == "huber":
            unnormalised = inner_huber(td)
        else:
            unnormalised = own(td) if twin == "own" else weight * inner_huber(td)
        return unnormalised / weight.mean() if divide else unnormalised

    return loss


# --- A loss under prioritised sampling and a loss under uniform sampling ---------------------


def uniform_equivalent(loss: Loss, priority: Priority) -> Loss:
    """Make the loss that, sampled uniformly, has `loss`'s expected gradient under `priority`.

    Fujimoto et al. 2020, Corollary 1: `L(td_i) = priority(td_i) * loss(td_i) / lambda`, lambda the
    mean priority, both held constant. Exact when called on the whole buffer; on a batch, lambda
    is a ratio estimate with a bias of order 1/B.
    """

    def equivalent(td: Array) -> Array:
        weight = jax.lax.stop_gradient(priority(td))
        return weight / weight.mean() * loss(td)

    return equivalent


def minimal_variance_priority(loss: Loss) -> Priority:
    """Return the priority under which the L1 loss has `loss`'s expected uniform gradient.

    `priority(td) = |d loss / d td|` (Fujimoto et al. 2020, Corollary 2). Of all pairs of a loss and
    a priority with that expected gradient, L1 with this priority has the least variance
    (Theorem 2); scale the L1 loss by the mean priority (`prioritised_equivalent` does both).
    """

    def priority(td: Array) -> Array:
        return jnp.abs(jax.grad(lambda x: loss(x).sum())(td))

    return priority


def prioritised_equivalent(loss: Loss) -> tuple[Loss, Priority]:
    """Return the least-variance pair (loss, priority) with `loss`'s expected uniform gradient.

    Fujimoto et al. 2020, Corollary 2 and Theorem 2: L1 scaled by the mean priority, sampled in
    proportion to the size of `loss`'s gradient.

    The loss takes the mean priority of the TD errors that it is given, which have to be all that
    are stored, or a uniform sample of them. It is wrong for a batch that was drawn by these
    priorities: their mean there estimates `sum_i p_i^2 / sum_i p_i` instead of `sum_i p_i / N`, and
    the gradient is too large by that factor. For such a batch scale `l1` by the harmonic mean of
    its priorities instead, `1 / (1 / priority(td)).mean()`, held constant and if none is 0: under
    these draws, 1 / p has the mean `N / sum_i p_i`. On a batch it is a ratio estimate with a bias
    of order 1/B.
    """
    priority = minimal_variance_priority(loss)

    def scaled_l1(td: Array) -> Array:
        return jax.lax.stop_gradient(priority(td).mean()) * l1(td)

    return scaled_l1, priority


def per_equivalent(alpha: float, beta: float, tau: float = 2.0) -> Loss:
    """Make the uniform loss that proportional PER with `|td|^tau / tau` minimises.

    Fujimoto et al. 2020, Theorem 3, for priorities `|td|^alpha` and importance weights of
    exponent `beta` divided by their maximum over the same TD errors:
    `eta N / (tau + alpha - alpha beta) * |td|^(tau + alpha - alpha beta)` with
    `eta = min_j |td_j|^(alpha beta) / sum_j |td_j|^alpha`, held constant.

    Raises:
      ValueError: `alpha` is negative, `beta` outside of [0, 1], or `tau` not positive.
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


# --- Objectives: the half of a replay method that goes to the agent ----------------------------


Reduce = Callable[[Array, Sample, Trust | None], Array]  # losses [B] of a batch to a loss []


class Objective(NamedTuple):
    """The half of a replay method that shapes an agent's losses."""

    error: Loss | None  # losses [N, B] of the TD errors [N, B] of N critics; None keeps the agent's
    # own: Huber with kappa 1 for DQN, squared for TD3 and SAC
    critic: Reduce  # the last argument is None from agents without a density
    actor: Reduce
    requires: Requirements = Requirements()


def check_no_density(objective: Objective | None, reason: str) -> None:
    """Raise ValueError if an objective reads `Trust`, for agents without a density.

    Args:
      objective: of the agent.
      reason: beginning of the message, such as "DQN's policy has no density".
    """
    if objective is not None and objective.requires.density:
        raise ValueError(
            f"{reason}, and this replay method needs {DENSITY}: use an agent that has one, or "
            "another replay method"
        )


def _mean(loss: Array, sample: Sample, trust: Trust | None) -> Array:
    del sample, trust
    return loss.mean()


def _weighted_mean(loss: Array, sample: Sample, trust: Trust | None) -> Array:
    del trust
    return (sample.weights * loss).mean()


def plain(error: Loss | None = None) -> Objective:
    """Make the objective of unweighted means; `error` None leaves the agent's own loss."""
    return Objective(error=error, critic=_mean, actor=_mean)


def weighted(error: Loss | None = None, actor: bool = False) -> Objective:
    """Make the objective whose critic loss is weighted by `Sample.weights`.

    The actor's loss stays unweighted, as in the LAP/PAL paper's TD3 with PER, unless `actor`, as
    in the authors' code of Novati & Koumoutsakos 2019.
    """
    return Objective(error=error, critic=_weighted_mean, actor=_weighted_mean if actor else _mean)
