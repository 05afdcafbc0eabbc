"""Description of two arms by the differences of their seeds.

Seed k of every arm is evaluated from the same initial states, which reduces the variance of paired
differences. Means and interquartile means of differences depend on outliers and on the unit of the
metric. They describe a comparison; wins, ties and losses decide it (`counts`, `verdicts`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.statistics.bootstrap import bootstrap_interval, iqm


def differences_of(arm: ArrayLike, baseline: ArrayLike) -> tuple[float, ...] | None:
    """Return the differences `[seeds]` of an arm from its baseline, or None.

    The result is None if a value is not finite: the seed diverged or never solved the task.

    Args:
      arm: `[seeds]`, one value per seed, which may be infinite or NaN.
      baseline: `[seeds]`, values of the same seeds in the same order.

    Raises:
      ValueError: the arms have different numbers of seeds.
    """
    x, y = (np.asarray(values, dtype=np.float64) for values in (arm, baseline))
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"shapes {x.shape} and {y.shape} make no pairs: give [seeds] of each arm")
    return tuple((x - y).tolist()) if np.isfinite([x, y]).all() else None


def describe(seeds: int, differences: Sequence[float] | None) -> dict[str, Any]:
    """Describe differences of seeds by mean and IQM, with 95 % bootstrap intervals over pairs.

    The IQM is computed over the differences; it is not the difference of two IQMs.

    Args:
      seeds: number of pairs.
      differences: from `differences_of`.

    Returns:
      A dict with seeds, differences, mean, mean_interval, iqm and iqm_interval; all but seeds are
      None without differences.

    Raises:
      ValueError: there are fewer than two differences.
    """
    description: dict[str, Any] = {"seeds": seeds, "differences": differences}
    for name, statistic in (("mean", np.mean), ("iqm", iqm)):
        value, ends = None, None
        if differences is not None:
            if len(differences) < 2:
                raise ValueError("an interval needs at least two seeds: train more seeds")
            value = float(statistic(np.asarray(differences)))
            low, high = bootstrap_interval(differences, statistic)
            ends = float(low), float(high)
        description |= {name: value, f"{name}_interval": ends}
    return description


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
