"""Losses with equal expected gradients under different sampling schemes: theory of LAP and PAL.

All functions are from Fujimoto, Meger & Precup 2020. A loss function maps TD errors of any shape to
losses of the same shape.
"""

from collections.abc import Callable
from typing import Literal, cast, get_args

import jax
import jax.numpy as jnp

from jaxreplay import devices
from jaxreplay._internal.arguments import check_choice
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.numerics import to_power
from jaxreplay.objectives import Loss, huber, l1
from jaxreplay.option import Bounds
from jaxreplay.types import Array

Priority = Callable[[Array], Array]
Twin = Literal["own", "max"]
Form = Literal["pal", "huber"]


def power(exponent: float, scale: float | Array = 1.0) -> Loss:
    """Return the loss `scale * |td|^exponent`, whose gradient is 0 at 0.

    Args:
      exponent: exponent of the absolute TD error, non-negative.
      scale: factor that multiplies the loss, non-negative.

    Raises:
      ValueError: If `exponent` or `scale` is negative or not finite.
    """
    Bounds(at_least=0).check("exponent", exponent)
    Bounds(at_least=0).check("scale", cast(float, scale))

    def loss(td: Array) -> Array:
        size = jnp.abs(td)
        nonzero = size > 0
        return scale * jnp.where(nonzero, jnp.where(nonzero, size, 1.0) ** exponent, 0.0)

    return loss


def lap_priority(alpha: float, kappa: float) -> Priority:
    """Return the LAP priority function, `max(|td|, kappa)^alpha` (Fujimoto et al. 2020, Eq. 9).

    Args:
      alpha: priority exponent, non-negative.
      kappa: lower bound on the absolute TD error, non-negative.

    Raises:
      ValueError: If an argument is negative or not finite.
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
    """Return the PAL loss, which has, under uniform sampling, the expected gradient of LAP.

    The loss is `kappa^alpha td^2 / (2 lambda)` if `|td| <= kappa`, and
    `kappa |td|^(1 + alpha) / ((1 + alpha) lambda)` otherwise (Fujimoto et al. 2020, Eq. 10 and 31).
    Lambda is the mean LAP priority over the batch, with stopped gradients. If the batch is sharded
    along `devices.AXIS`, the mean is over the batches of all devices. The priority of a transition
    is computed from the largest absolute TD error among all critics.

    Args:
      alpha: exponent of the equivalent priority, in [0, 1].
      kappa: absolute TD error above which the loss is no longer quadratic, positive.
      twin: "own" evaluates each critic's loss at that critic's TD error, as in the authors' code.
        "max" multiplies each critic's Huber loss by the priority of the transition. With multiple
        critics, only "max" equals LAP in expectation.
      form: "pal", or "huber" for the Huber loss instead, as in an ablation in the paper.
      divide: whether to divide by lambda. False is another ablation in the paper.

    Returns:
      A loss function for TD errors `[B]` of a batch, or `[N, B]` for N critics.

    Raises:
      ValueError: If an argument is out of range.
    """
    Bounds(at_least=0, at_most=1).check("alpha", alpha)
    Bounds(above=0).check("kappa", kappa)
    check_choice("twin", twin, get_args(Twin))
    check_choice("form", form, get_args(Form))
    priority = lap_priority(alpha, kappa)
    inner_huber = huber(kappa)

    def per_critic(td: Array) -> Array:
        size = jnp.abs(td)
        outer = jnp.maximum(size, kappa)  # keeps the gradient of the unused branch finite at td = 0
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
            unnormalised = per_critic(td) if twin == "own" else weight * inner_huber(td)
        if not divide:
            return unnormalised
        return unnormalised / devices.mean(weight.mean(), devices.current())

    return loss


def uniform_equivalent(loss: Loss, priority: Priority) -> Loss:
    """Return the loss that is equivalent, under uniform sampling, to `loss` sampled by `priority`.

    Both losses have the same expected gradient. The returned loss is
    `L(td_i) = priority(td_i) * loss(td_i) / lambda`, where lambda is the mean priority. Gradients
    through the priority and lambda are stopped (Fujimoto et al. 2020, Corollary 1). The equivalence
    is exact for the TD errors of the whole buffer. For the TD errors of a batch of size B,
    1 / lambda has a bias of order 1/B.

    Args:
      loss: loss function under prioritised sampling.
      priority: function that maps TD errors to unnormalised sampling probabilities.
    """

    def equivalent(td: Array) -> Array:
        weight = jax.lax.stop_gradient(priority(td))
        return weight / weight.mean() * loss(td)

    return equivalent


def minimal_variance_priority(loss: Loss) -> Priority:
    """Return the priority function `|d loss / d td|` (Fujimoto et al. 2020, Corollary 2).

    Under this priority, the L1 loss times the mean priority has the same expected gradient as
    `loss` under uniform sampling. Of all pairs of a loss and a priority with this property, this
    pair has the minimum gradient variance (Theorem 2). `prioritised_equivalent` returns the pair.
    """

    def priority(td: Array) -> Array:
        return jnp.abs(jax.grad(lambda x: loss(x).sum())(td))

    return priority


def prioritised_equivalent(loss: Loss) -> tuple[Loss, Priority]:
    """Return the pair (loss, priority) with the expected gradient of `loss` and minimum variance.

    The priority is `|d loss / d td|`, and the loss is L1 times the mean priority of the whole
    buffer (Fujimoto et al. 2020, Corollary 2 and Theorem 2). The expected gradient under this
    priority equals the expected gradient of `loss` under uniform sampling, and the gradient's
    variance is the smallest possible.

    The returned loss computes the mean priority from its argument: pass the TD errors of the whole
    buffer or of a uniform sample. On a batch drawn by priority, use
    `l1(td) * stop_gradient(1 / (1 / priority(td)).mean())` instead, which requires priorities above
    0. On such a batch, with N priorities p_i in the buffer, the mean priority estimates
    `sum_i p_i^2 / sum_i p_i` instead of `sum_i p_i / N`, and gradients would be too large. The
    harmonic mean of the batch estimates `sum_i p_i / N` with a bias of order 1/B.

    Example:
      >>> from jaxreplay.objectives import mse
      >>> loss, priority = prioritised_equivalent(mse)
      >>> loss(jnp.array([1.0, -3.0])).tolist(), priority(jnp.array([1.0, -3.0])).tolist()
      ([2.0, 6.0], [1.0, 3.0])
    """
    priority = minimal_variance_priority(loss)

    def scaled_l1(td: Array) -> Array:
        return jax.lax.stop_gradient(priority(td).mean()) * l1(td)

    return scaled_l1, priority


def per_equivalent(alpha: float, beta: float, tau: float = 2.0) -> Loss:
    """Return the loss under uniform sampling that proportional PER minimises in expectation.

    For N TD errors, the loss is `eta N / c * |td|^c` with `c = tau + alpha - alpha beta` and
    `eta = min_j |td_j|^(alpha beta) / sum_j |td_j|^alpha`. Gradients through eta are stopped
    (Fujimoto et al. 2020, Theorem 3). The result applies to PER with the loss `|td|^tau / tau`,
    priorities `|td|^alpha` and importance weights that are divided by their maximum over the same
    TD errors.

    Args:
      alpha: priority exponent, non-negative.
      beta: exponent for importance weights, in [0, 1].
      tau: exponent of the PER loss, positive. 2 yields the mean squared error, and 1 yields L1.

    Raises:
      ValueError: If an argument is out of range.
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
