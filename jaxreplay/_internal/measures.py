"""Quantities of replay in NumPy: of probabilities, of draws, and of gradients."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


def entropy(probability: np.ndarray) -> float:
    """Return the entropy of probabilities `[N]`, divided by that of uniform sampling."""
    positive = probability[probability > 0]
    if len(probability) < 2:
        return 1.0
    return float(-(positive * np.log(positive)).sum() / np.log(len(probability)))


def effective_buffer(probability: np.ndarray) -> float:
    """Return the share of the buffer in use, `1 / (N sum P^2)` for probabilities `[N]`."""
    return float(1 / (len(probability) * np.square(probability).sum()))


def total_variation(left: np.ndarray, right: np.ndarray) -> float:
    """Return the total variation `sum |P - Q| / 2` between probabilities `[N]`, in [0, 1]."""
    return float(0.5 * np.abs(left - right).sum())


def rank_correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Return Spearman's correlation of two arrays `[n]`; NaN if one of them is constant.

    Ties have their mean rank.
    """
    if len(left) < 2:
        return float("nan")
    ranks = [_ranks(values) - (len(values) - 1) / 2 for values in (left, right)]
    scale = np.sqrt(np.square(ranks[0]).sum() * np.square(ranks[1]).sum())
    return float((ranks[0] * ranks[1]).sum() / scale) if scale > 0 else float("nan")


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[place]


def median_wait(waits: np.ndarray, seen: np.ndarray) -> float:
    """Return the Kaplan-Meier median of waits `[n]`; infinity if it is not reached.

    Args:
      waits: `[n]`, time until the event, or until the end of the observation.
      seen: `[n]` bool, whether the event was observed; other waits are censored.
    """
    order = np.lexsort((~seen, waits))  # events precede censored waits of the same length
    waits, seen = waits[order], seen[order]
    at_risk = len(waits) - np.arange(len(waits))
    alive = np.cumprod(np.where(seen, 1 - 1 / at_risk, 1.0))
    reached = np.flatnonzero(alive <= 0.5 + 1e-12)
    return float(waits[reached[0]]) if len(reached) else float("inf")


def forecast_undrawn(volume: float, full: bool) -> float:
    """Return the expected share of transitions that uniform replay has not drawn.

    In a growing buffer, a transition is drawn `volume * log(now / then)` times on average, and in a
    full one, in proportion to its age.
    """
    if volume == 0:
        return 1.0
    return float(-np.expm1(-volume) / volume) if full else 1 / (volume + 1)


def forecast_wait(volume: float, stored: int, full: bool) -> float:
    """Return the median time until a new transition is drawn by uniform replay, in transitions."""
    if volume == 0:
        return float("inf")
    return stored * (np.log(2) / volume if full else float(np.expm1(np.log(2) / volume)))


class Effect(NamedTuple):
    """The gradient of a batch, compared with the mean gradient of all transitions."""

    cosine: float  # of the expected gradient G and the mean gradient
    bias: float  # distance between G, scaled to fit, and the mean gradient, relative to the latter
    variance: float  # of the gradient of a batch
    noise: float  # variance / |G|^2
    variance_ratio: float  # scaled as G is: variance / s^2, in units of the gradient


class Gradients(NamedTuple):
    """Gradients `[n, D]` of n transitions, as the sums that effects require.

    `project(weights[M, n])` returns the sums `weights @ gradients`, `[M, D]`.
    """

    norms: np.ndarray  # [n], squared norms
    project: Callable[[np.ndarray], np.ndarray]
    basis: str  # "parameters", or "output" if gradients of transitions are taken as orthogonal


def effects(
    gradients: Gradients, probability: np.ndarray, weights: np.ndarray, batch_size: int
) -> list[Effect]:
    """Return the effect of M ways to draw independent transitions and to weigh them.

    Args:
      gradients: of n transitions.
      probability: `[M, n]`, each row with sum 1.
      weights: `[M, n]`, up to a factor for each row.
      batch_size: B.
    """
    count = len(gradients.norms)
    scaled = probability * weights
    rows = gradients.project(np.concatenate([np.full((1, count), 1 / count), scaled]))
    mean, *expected = rows.astype(np.float64)
    second = (scaled * weights) @ gradients.norms
    return [
        _effect(g, mean, s, batch_size) for g, s in zip(expected, second, strict=True)
    ]


def _effect(expected: np.ndarray, mean: np.ndarray, second: float, batch_size: int) -> Effect:
    square, whole = float(expected @ expected), float(mean @ mean)
    variance = max(float(second) - square, 0.0) / batch_size
    nothing = float("nan")
    if square == 0 or whole == 0:
        return Effect(nothing, nothing, variance, nothing, nothing)
    scale = float(expected @ mean) / whole
    cosine = float(expected @ mean) / np.sqrt(square * whole)
    bias, unit = nothing, nothing
    if scale > 0:
        bias = float(np.linalg.norm(expected / scale - mean) / np.sqrt(whole))
        unit = variance / scale**2
    return Effect(cosine, bias, variance, variance / square, unit)


def by_output(slopes: np.ndarray) -> Gradients:
    """Return gradients `[n, n]` by the outputs, of which that of transition i is `slopes[i]`."""
    return Gradients(np.square(slopes), lambda weights: weights * slopes, "output")


def oracle(norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities and weights `[n]` of the unbiased draw with the smallest variance.

    Probabilities are in proportion to the norms of gradients, given as squares `[n]`.
    """
    size = np.sqrt(norms)
    if not size.sum() > 0:
        return np.full(len(size), 1 / len(size)), np.ones(len(size))
    probability = size / size.sum()
    return probability, np.where(
        probability > 0, 1 / (len(size) * np.where(probability > 0, probability, 1.0)), 0.0
    )
