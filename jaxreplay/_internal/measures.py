"""Measures of the probabilities, draws and gradients of replay, in NumPy."""

from typing import NamedTuple

import numpy as np


def entropy(probability: np.ndarray) -> float:
    """Return the entropy of probabilities `[N]`, divided by the entropy of uniform sampling."""
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
    """Return the Kaplan-Meier median of waits `[n]`; infinity if the median is not reached.

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
    """Return the expected share of stored transitions that uniform replay has not drawn.

    `volume` is the number of draws per added transition. In a growing buffer, a transition that was
    added at time `then` has been drawn `volume * log(now / then)` times on average. In a full
    buffer, it has been drawn `volume * age / largest age` times on average.
    """
    if volume == 0:
        return 1.0
    return float(-np.expm1(-volume) / volume) if full else 1 / (volume + 1)


def forecast_wait(volume: float, stored: int, full: bool) -> float:
    """Return the median time until uniform replay draws a new transition, in added transitions."""
    if volume == 0:
        return float("inf")
    return stored * (np.log(2) / volume if full else float(np.expm1(np.log(2) / volume)))


class Effect(NamedTuple):
    """Cosine, bias and noise of the gradient of a batch.

    The reference is the mean gradient m of all transitions.
    """

    cosine: float  # cosine similarity of the expected gradient G of a batch and m
    bias: float  # |G / s - m| / |m|, where s = <G, m> / |m|^2 scales G to fit m
    variance: float  # variance of the gradient of a batch
    noise: float  # variance / |G|^2


class Gradients(NamedTuple):
    """Sums over the gradients of n transitions."""

    norms: np.ndarray  # [n], squared norm of each gradient
    mean: np.ndarray  # [D], mean gradient of all transitions
    sums: np.ndarray  # [M, D], sums of the gradients, weighted in M ways


def effects(
    gradients: Gradients, probability: np.ndarray, weights: np.ndarray, batch_size: int
) -> list[Effect]:
    """Return the `Effect` of each of M ways to draw and weight independent transitions.

    Args:
      gradients: sums over n transitions, with `sums` weighted by `probability * weights`.
      probability: `[M, n]`, each row with sum 1.
      weights: `[M, n]`, up to a factor for each row.
      batch_size: B.
    """
    second = (probability * np.square(weights)) @ gradients.norms
    pairs = zip(gradients.sums, second, strict=True)
    return [effect(total, gradients.mean, moment, batch_size) for total, moment in pairs]


def effect(expected: np.ndarray, mean: np.ndarray, second: float, batch_size: int) -> Effect:
    """Return the `Effect` of batches, given their expected gradient.

    Args:
      expected: `[D]`, expected gradient G of a batch.
      mean: `[D]`, mean gradient of all transitions.
      second: expected squared norm of the weighted gradient of one draw.
      batch_size: B.
    """
    square, whole = float(expected @ expected), float(mean @ mean)
    variance, nothing = max(float(second) - square, 0.0) / batch_size, float("nan")
    if square == 0 or whole == 0:
        return Effect(nothing, nothing, variance, nothing)
    scale = float(expected @ mean) / whole
    cosine = min(float(expected @ mean) / np.sqrt(square * whole), 1.0)
    off = np.linalg.norm(expected / scale - mean) / np.sqrt(whole) if scale > 0 else nothing
    return Effect(cosine, float(off), variance, variance / square)


def oracle(gradients: Gradients, batch_size: int) -> Effect:
    """Return the `Effect` of the unbiased draws and weights with the smallest variance.

    Transitions are drawn in proportion to the norms of their gradients, with weights 1 / (N P).
    """
    second = np.sqrt(gradients.norms).mean() ** 2
    return effect(gradients.mean, gradients.mean, float(second), batch_size)


def by_output(slopes: np.ndarray, scaled: np.ndarray) -> Gradients:
    """Return `Gradients` with respect to outputs, assumed orthogonal for different transitions.

    Args:
      slopes: `[n]`, derivatives of the losses.
      scaled: `[M, n]`, products of probabilities and weights.
    """
    return Gradients(np.square(slopes), slopes / len(slopes), scaled * slopes)
