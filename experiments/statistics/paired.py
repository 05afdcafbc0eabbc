"""Two arms of a comparison, seed by seed: differences, wins, probability of improvement, p-values.

Seed k of every arm is evaluated from the same starts, so that pairs differ by less than arms do.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from experiments.statistics.bootstrap import bootstrap_interval, iqm, stratified_interval

# The sign-flip test enumerates the flips of up to 20 differences, and counts the flips of more on a
# grid with 2^18 steps for the sum of all: p-values near 0.05 are then 0.0002 too large at most.
_EXACT, _STEPS = 20, 2**18

Interval = tuple[float, float]


@dataclass(frozen=True)
class Pairs:
    """An arm and its baseline, seed by seed; `dataclasses.asdict` of it is JSON-able.

    Differences are signed so that **positive is better for the arm**, whatever the direction of the
    metric. Values that are not finite (never solved, or NaN for a diverged seed, which ranks below
    all others) have no differences, and these fields are None: wins, ties and both probabilities of
    improvement depend only on the order of two values, and the p-value is of the signs.
    """

    seeds: int
    differences: tuple[float, ...] | None  # [seeds], in the metric's unit
    mean: float | None
    mean_interval: Interval | None
    iqm: float | None  # of the differences, not the difference of two IQMs
    iqm_interval: Interval | None
    wins: int
    losses: int
    ties: int
    improvement: float  # share of seeds in which the arm is better, ties half
    improvement_interval: Interval
    unpaired_improvement: float  # of any seed of the arm over any of the baseline, ties half
    unpaired_improvement_interval: Interval
    p_value: float  # two-sided, of no difference
    p_holm: float | None = None  # p_value corrected for the number of arms, if there are several


def compare_pairs(arm: ArrayLike, baseline: ArrayLike, higher_is_better: bool = True) -> Pairs:
    """Compare an arm with its baseline seed by seed.

    Intervals are of the percentile bootstrap over pairs, at 95 %.

    Args:
      arm: [seeds] one number per seed; infinite or NaN as in `Pairs`.
      baseline: [seeds] of the same seeds in the same order (`aligned`).
      higher_is_better: False for example for agent steps until solved.

    Raises:
      ValueError: the arms differ in length, or have fewer than two seeds.
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
    columns = x[:, None], y[:, None]
    unpaired = stratified_interval(columns, probability_of_improvement)
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
        unpaired_improvement=float(probability_of_improvement(*columns)),
        unpaired_improvement_interval=_floats(unpaired),
        p_value=sign_flip_test(signs if differences is None else differences),
    )


def compare_arms(
    values: Mapping[str, ArrayLike], baseline: str, higher_is_better: bool = True
) -> dict[str, Pairs]:
    """Compare every arm with one baseline; p-values are corrected over the arms (Holm).

    Args:
      values: [seeds] by label, of the same seeds.
      baseline: the label that the others are compared with.
      higher_is_better: the direction of the metric.

    Raises:
      ValueError: no arm has the baseline's label, or see `compare_pairs`.
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


def align(arms: Mapping[str, pd.Series]) -> dict[str, np.ndarray]:
    """Return one array [seeds] per arm, in the order of the seeds, which must be the same.

    Args:
      arms: by label, one number per seed; the index holds the seeds.

    Raises:
      ValueError: two arms have different seeds.
    """
    first, *_ = arms
    seeds = sorted(arms[first].index)
    for label, series in arms.items():
        if sorted(series.index) != seeds:
            raise ValueError(
                f"'{first}' has seeds {_listed(seeds)}, '{label}' {_listed(sorted(series.index))}: "
                "pairs need the same seeds in every arm"
            )
    return {label: series.loc[seeds].to_numpy(np.float64) for label, series in arms.items()}


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return P(X > Y) + P(X = Y) / 2 for any run of x and any of y, a mean over tasks.

    The Mann-Whitney statistic per pair (Agarwal et al. 2021, section 4.3). Higher is better.

    Args:
      x: [..., seeds, tasks].
      y: [..., other seeds, tasks].

    Returns:
      [...].
    """
    x, y = np.asarray(x)[..., :, None, :], np.asarray(y)[..., None, :, :]
    return (np.mean(x > y, axis=(-3, -2, -1)) + np.mean(x >= y, axis=(-3, -2, -1))) / 2


def sign_flip_test(differences: ArrayLike) -> float:
    """Return the two-sided p-value of paired differences [seeds] with mean 0.

    If the arms are the same, every difference is as likely as its negative: the mean is compared
    with that after every flip of signs (Fisher's permutation test). Exact up to twenty differences
    that are not 0, and for any number of signs alone (-1, 0, 1), of which it is the sign test;
    other numbers are rounded to a grid, and the p-value upwards. Unlike Wilcoxon's it asks about
    the mean, in the metric's unit, and stays exact with ties and zeros.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]  # flips of zeros change nothing
    if len(values) > _EXACT:
        return _counted_on_a_grid(values)
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    slack = 1e-12 * np.abs(values).sum()  # sums of the same numbers differ in their last bits
    return float((np.abs(sums) >= np.abs(values.sum()) - slack).mean())


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values corrected for their number (Holm 1979), by label.

    The smallest of m is multiplied by m, the next by m - 1 and so on; none may be smaller than the
    one before, or exceed 1. Comparing them with 0.05 keeps the chance of any false claim below it.
    """
    corrected, so_far = {}, 0.0
    for rank, label in enumerate(sorted(p_values, key=p_values.__getitem__)):
        so_far = max(so_far, (len(p_values) - rank) * p_values[label])
        corrected[label] = min(so_far, 1.0)
    return {label: corrected[label] for label in p_values}


def _counted_on_a_grid(values: np.ndarray) -> float:
    """Return the share of the flips of values [n] whose sum is as far from 0, rounded upwards."""
    steps = np.rint(values * (_STEPS / np.abs(values).sum())).astype(int)
    total = np.abs(steps).sum()
    # The values that a flip makes negative take 2 lost from the sum. Each of the two sums that are
    # compared is wrong by half a step for each value at most.
    most_lost = (total - np.abs(steps.sum()) + len(steps)) // 2
    chance = np.zeros(most_lost + 1)  # of each `lost`
    chance[0] = 1.0
    for step in np.abs(steps):
        lost = np.concatenate([np.zeros(min(step, len(chance))), chance])[: len(chance)]
        chance = (chance + lost) / 2
    return float(min(2 * chance.sum(), 1.0))  # as many flips lose all but so much


def _signed(values: ArrayLike, higher_is_better: bool) -> np.ndarray:
    """Return values for which higher is better, NaN as the worst."""
    signed = np.asarray(values, dtype=np.float64) * (1 if higher_is_better else -1)
    return np.where(np.isnan(signed), -math.inf, signed)


def _estimate(values: np.ndarray | None, statistic: Callable) -> tuple:
    """Return a statistic of values [seeds] and its interval, or None for both."""
    if values is None:
        return None, None
    return float(statistic(values)), _floats(bootstrap_interval(values, statistic))


def _floats(interval: tuple[np.ndarray, np.ndarray]) -> Interval:
    low, high = interval
    return float(low), float(high)


def _listed(seeds: list) -> str:
    return ", ".join(map(str, seeds))
