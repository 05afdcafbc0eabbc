"""Scores of many tasks: normalised, aggregated as papers do, and as performance profiles.

Scores are arrays [..., seeds, tasks]; aggregates take the last two axes together, so that they are
statistics for `bootstrap.stratified_interval`.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from experiments.statistics.bootstrap import iqm, stratified_interval


def normalised(scores: ArrayLike, random: ArrayLike, reference: ArrayLike) -> np.ndarray:
    """Return (score - random) / |reference - random|: 0 is random play, 1 the reference.

    With human scores as the reference it is the human-normalised score of Schaul et al. 2016, Eq. 4
    (`atari_scores` has them); with a baseline arm's it is the score against random. The absolute
    value matters where the reference is worse than random play.

    Args:
      scores: [..., tasks].
      random: [tasks] score of random play.
      reference: [tasks].

    Raises:
      ValueError: a reference equals random play, which leaves no unit.
    """
    random, reference = np.asarray(random, np.float64), np.asarray(reference, np.float64)
    unit = np.abs(reference - random)
    if not (unit > 0).all():
        raise ValueError("a reference score equals random play's: no score can be normalised by it")
    return (np.asarray(scores, np.float64) - random) / unit


def min_max(arms: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Return scores [seeds, tasks] of all arms scaled to [0, 1] per task, within the comparison.

    As the ablations of Brittain et al. 2019, Fig. 6: 0 and 1 are the worst and the best score of
    any seed of any arm, so they mean nothing outside of it. A task in which all are equal gives 0.
    """
    scores = {label: np.asarray(arm, np.float64) for label, arm in arms.items()}
    together = np.concatenate(list(scores.values()))
    low, span = together.min(axis=0), np.ptp(together, axis=0)
    return {label: (own - low) / np.where(span > 0, span, 1.0) for label, own in scores.items()}


def gain(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return (x - y) / |y|, the gain of x over y (Fujimoto et al. 2020, Tab. 2; PSER's Eq. 38).

    Raises:
      ValueError: y is 0 somewhere; normalise by random play instead.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if (y == 0).any():
        raise ValueError("a gain over a score of 0 is infinite: normalise by random play instead")
    return (x - y) / np.abs(y)


def mean_of_tasks(scores: ArrayLike) -> np.ndarray:
    """Return the mean over tasks of the mean over seeds, [...]: "mean normalised score"."""
    return np.asarray(scores).mean(axis=-2).mean(axis=-1)


def median_of_tasks(scores: ArrayLike) -> np.ndarray:
    """Return the median over tasks of the mean over seeds, [...]: "median normalised score"."""
    return np.median(np.asarray(scores).mean(axis=-2), axis=-1)


def iqm_of_runs(scores: ArrayLike) -> np.ndarray:
    """Return the interquartile mean over all runs of all tasks, [...] (Agarwal et al. 2021)."""
    scores = np.asarray(scores)
    return iqm(scores.reshape(*scores.shape[:-2], -1), axis=-1)


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> np.ndarray:
    """Return by how much runs miss a target score on average, [...] (Agarwal et al. 2021).

    What exceeds the target does not make up for what misses it; lower is better.
    """
    return target - np.minimum(scores, target).mean(axis=(-2, -1))


def share_above(scores: ArrayLike, taus: ArrayLike) -> np.ndarray:
    """Return the share of runs above each score tau, a mean over tasks: [..., taus].

    The run-score distribution, or performance profile, of Agarwal et al. 2021, Eq. 1.
    """
    above = np.asarray(scores)[..., None] > np.asarray(taus)
    return above.mean(axis=(-3, -2))


def profile(
    scores: ArrayLike, taus: ArrayLike, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a performance profile and the lower and upper end of its pointwise band, [taus] each.

    Args:
      scores: [seeds, tasks]; the band is the bootstrap stratified over tasks.
      taus: [taus] scores at which to read the profile.
      level: nominal coverage at every tau by itself.
    """
    low, high = stratified_interval([scores], lambda drawn: share_above(drawn, taus), level)
    return share_above(scores, taus), low, high
