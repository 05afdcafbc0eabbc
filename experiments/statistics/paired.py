"""Description of two arms by the differences of their seeds.

Seed k of every arm is evaluated from the same initial states, which reduces the variance of paired
differences. Means and interquartile means of differences depend on outliers and on the unit of the
metric. They describe a comparison; wins, ties and losses decide it (`counts`, `decisions`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.statistics.counts import Interval


@dataclass(frozen=True)
class Pairs:
    """Differences of an arm from its baseline, JSON-able by `dataclasses.asdict`.

    Positive differences mean that the arm is better, for either direction of the metric. All fields
    except `seeds` are None if any value is not finite: a seed that diverged or never solved the
    task.
    """

    seeds: int
    differences: tuple[float, ...] | None = None  # `[seeds]`, in the metric's unit
    mean: float | None = None
    mean_interval: Interval | None = None
    iqm: float | None = None  # IQM of the differences, not the difference of two IQMs
    iqm_interval: Interval | None = None


def compare_pairs(arm: ArrayLike, baseline: ArrayLike, higher_is_better: bool = True) -> Pairs:
    """Describe the differences of an arm from its baseline seed by seed.

    Intervals are 95 % percentile bootstrap intervals over pairs.

    Args:
      arm: `[seeds]`, one value per seed, which may be infinite or NaN (see `Pairs`).
      baseline: `[seeds]`, values of the same seeds in the same order.
      higher_is_better: direction of the metric, such as False for agent steps until solved.

    Raises:
      ValueError: the arms have different numbers of seeds, or fewer than two.
    """
    sign = 1 if higher_is_better else -1
    x, y = (sign * np.asarray(values, dtype=np.float64) for values in (arm, baseline))
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"arms of shape {x.shape} and {y.shape} make no pairs: give [seeds] each")
    if len(x) < 2:
        raise ValueError("an interval needs at least two seeds: train more")
    if not np.isfinite([x, y]).all():
        return Pairs(len(x))
    differences = x - y
    return Pairs(
        len(x), tuple(differences.tolist()), *_estimate(differences, np.mean),
        *_estimate(differences, iqm),
    )  # fmt: skip


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return P(X > Y) + P(X = Y) / 2 for random runs X of x and Y of y, averaged over tasks.

    This is the normalized Mann-Whitney statistic of Agarwal et al. 2021, section 4.3, for values of
    which higher is better. Runs are not paired, in contrast to the paired probability of
    improvement in `counts`.

    Args:
      x: `[..., seeds, tasks]`.
      y: `[..., other seeds, tasks]`.

    Returns:
      Probabilities `[...]`.
    """
    x, y = np.asarray(x)[..., :, None, :], np.asarray(y)[..., None, :, :]
    return (np.mean(x > y, axis=(-3, -2, -1)) + np.mean(x >= y, axis=(-3, -2, -1))) / 2


def _estimate(values: np.ndarray, statistic: Callable) -> tuple[float, Interval]:
    """Return a statistic of values `[seeds]` and its interval."""
    low, high = bootstrap_interval(values, statistic)
    return float(statistic(values)), (float(low), float(high))
