"""Paired comparison of two arms: differences, wins, probability of improvement, p-values.

Seed k of every arm is evaluated from the same initial states, which reduces the variance of paired
differences.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from experiments.statistics.bootstrap import bootstrap_interval, iqm

# The sign-flip test enumerates all flips of up to 20 differences. More are rounded to a grid, on
# which their sum has 2^18 steps; p-values near 0.05 are then too large by at most 0.0002.
_EXACT, _STEPS = 20, 2**18

Interval = tuple[float, float]


@dataclass(frozen=True)
class Pairs:
    """Paired comparison of an arm with its baseline, JSON-able by `dataclasses.asdict`.

    Positive differences mean that the arm is better, for either direction of the metric. If any
    value is not finite (a seed that never solved the task, or NaN for a diverged seed, which ranks
    below all others), the fields with differences are None and the p-value is that of their signs.
    Wins, ties and the probability of improvement depend only on the order of two values.
    """

    seeds: int
    differences: tuple[float, ...] | None  # `[seeds]`, in the metric's unit
    mean: float | None
    mean_interval: Interval | None
    iqm: float | None  # IQM of the differences, not the difference of two IQMs
    iqm_interval: Interval | None
    wins: int
    losses: int
    ties: int
    improvement: float  # share of seeds on which the arm is better; ties count 1/2
    improvement_interval: Interval
    p_value: float  # two-sided, for no difference
    p_holm: float | None = None  # p_value corrected over the arms, if there are several


def compare_pairs(arm: ArrayLike, baseline: ArrayLike, higher_is_better: bool = True) -> Pairs:
    """Compare an arm with its baseline seed by seed.

    Intervals are 95 % percentile bootstrap intervals over pairs.

    Args:
      arm: `[seeds]`, one value per seed, which may be infinite or NaN (see `Pairs`).
      baseline: `[seeds]`, values of the same seeds in the same order.
      higher_is_better: direction of the metric, such as False for agent steps until solved.

    Raises:
      ValueError: the arms have different numbers of seeds, or fewer than two.
    """
    x, y = _signed(arm, higher_is_better), _signed(baseline, higher_is_better)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"arms of shape {x.shape} and {y.shape} make no pairs: give [seeds] each")
    if len(x) < 2:
        raise ValueError("an interval needs at least two seeds: train more")
    signs = (x > y).astype(int) - (x < y)
    differences = x - y if np.isfinite([x, y]).all() else None
    mean, mean_interval = _estimate(differences, np.mean)
    middle, iqm_interval = _estimate(differences, iqm)
    improvement, improvement_interval = _estimate((signs + 1) / 2, np.mean)
    return Pairs(
        seeds=len(x),
        differences=None if differences is None else tuple(differences.tolist()),
        mean=mean,
        mean_interval=mean_interval,
        iqm=middle,
        iqm_interval=iqm_interval,
        wins=int((signs > 0).sum()),
        losses=int((signs < 0).sum()),
        ties=int((signs == 0).sum()),
        improvement=improvement,
        improvement_interval=improvement_interval,
        p_value=sign_flip_test(signs if differences is None else differences),
    )


def compare_arms(
    values: Mapping[str, ArrayLike], baseline: str, higher_is_better: bool = True
) -> dict[str, Pairs]:
    """Compare every arm with one baseline; p-values are corrected over the arms (Holm).

    Args:
      values: `[seeds]` by label, for the same seeds.
      baseline: label of the baseline.
      higher_is_better: direction of the metric.

    Returns:
      The comparison of every arm except the baseline, by label.

    Raises:
      ValueError: no arm has the baseline's label, or as in `compare_pairs`.
    """
    if baseline not in values:
        raise ValueError(f"no arm is called '{baseline}': the arms are {', '.join(values)}")
    base = values[baseline]
    pairs = {
        label: compare_pairs(own, base, higher_is_better)
        for label, own in values.items()
        if label != baseline
    }
    corrected = holm({label: each.p_value for label, each in pairs.items()})
    return {label: replace(each, p_holm=corrected[label]) for label, each in pairs.items()}


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return P(X > Y) + P(X = Y) / 2 for random runs X of x and Y of y, averaged over tasks.

    This is the normalized Mann-Whitney statistic (Agarwal et al. 2021, section 4.3), for values of
    which higher is better.

    Args:
      x: `[..., seeds, tasks]`.
      y: `[..., other seeds, tasks]`.

    Returns:
      Probabilities `[...]`.
    """
    x, y = np.asarray(x)[..., :, None, :], np.asarray(y)[..., None, :, :]
    return (np.mean(x > y, axis=(-3, -2, -1)) + np.mean(x >= y, axis=(-3, -2, -1))) / 2


def sign_flip_test(differences: ArrayLike) -> float:
    """Return the two-sided p-value of the null that paired differences `[seeds]` have mean 0.

    If the arms are equal, every difference is as likely as its negative. The test therefore
    compares the mean with the means after all flips of signs (Fisher's permutation test). It is
    exact for up to twenty nonzero differences, and for any number of signs (-1, 0, 1), for which it
    is the sign test. More differences are rounded to a grid, and the p-value is rounded up. Unlike
    Wilcoxon's test, it is about the mean in the metric's unit, and is exact with ties and zeros.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]  # flips of zeros have no effect
    if len(values) > _EXACT:
        return _counted_on_a_grid(values)
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    slack = 1e-12 * np.abs(values).sum()  # tolerance for the rounding of sums
    return float((np.abs(sums) >= np.abs(values.sum()) - slack).mean())


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values by label, corrected for their number m (Holm 1979).

    The smallest p-value is multiplied by m, the next by m - 1 and so on; results are then made
    monotone and clipped to 1. A threshold of 0.05 limits the probability of any false rejection.
    """
    corrected, so_far = {}, 0.0
    for rank, label in enumerate(sorted(p_values, key=p_values.__getitem__)):
        so_far = max(so_far, (len(p_values) - rank) * p_values[label])
        corrected[label] = min(so_far, 1.0)
    return {label: corrected[label] for label in p_values}


def _counted_on_a_grid(values: np.ndarray) -> float:
    """Return the share of flips of values `[n]` whose sum is at least as far from 0, rounded up."""
    steps = np.rint(values * (_STEPS / np.abs(values).sum())).astype(int)
    total = np.abs(steps).sum()
    # A flip whose negative values have the sum `lost` reduces the total by 2 lost. Rounding changes
    # each of the two compared sums by at most half a step per value.
    most_lost = (total - np.abs(steps.sum()) + len(steps)) // 2
    chance = np.zeros(most_lost + 1)  # probability of each `lost`
    chance[0] = 1.0
    for step in np.abs(steps):
        lost = np.concatenate([np.zeros(min(step, len(chance))), chance])[: len(chance)]
        chance = (chance + lost) / 2
    return float(min(2 * chance.sum(), 1.0))  # by symmetry, both tails have equal probability


def _signed(values: ArrayLike, higher_is_better: bool) -> np.ndarray:
    """Return values of which higher is better, with NaN replaced by the worst value."""
    signed = np.asarray(values, dtype=np.float64) * (1 if higher_is_better else -1)
    return np.where(np.isnan(signed), -math.inf, signed)


def _estimate(values: np.ndarray | None, statistic: Callable) -> tuple:
    """Return a statistic of values `[seeds]` and its interval, or None for both."""
    if values is None:
        return None, None
    return float(statistic(values)), _floats(bootstrap_interval(values, statistic))


def _floats(interval: tuple[np.ndarray, np.ndarray]) -> Interval:
    low, high = interval
    return float(low), float(high)
