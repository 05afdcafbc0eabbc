"""Percentile bootstrap intervals, computed from all possible resamples if seeds are few."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

# Largest number of distinct resamples to enumerate: eight seeds, or two groups of five.
ENUMERATED = 20_000
# Number of random resamples otherwise; a tenth of it for points of a curve, and for several arms or
# tasks. For the committed results, the Monte Carlo error of an end is 0.2 % of the interval's width
# (median; 2 % at the 90th percentile), and up to 10 % if few values make its distribution coarse.
DRAWN = 20_000


def iqm(x: ArrayLike, axis: int = 0) -> np.ndarray:
    """Return the interquartile mean, the mean of the middle half (Agarwal et al. 2021, section 4).

    A quarter of the values, rounded down, is trimmed at either end, as in rliable: the IQM of five
    seeds is the mean of the middle three, and the IQM of fewer than four seeds is the plain mean.
    The result is NaN if any value is NaN.
    """
    # Equal to scipy.stats.trim_mean, whose import would delay every run by a second.
    x = np.moveaxis(np.asarray(x, dtype=np.float64), axis, 0)
    cut = len(x) // 4
    middle = np.partition(x, (cut, len(x) - cut - 1), axis=0)[cut : len(x) - cut]
    # Sorting puts NaN last, so trimming would treat a diverged seed as the best one.
    return np.where(np.isnan(x).any(0), np.nan, middle.mean(axis=0))


def bootstrap_interval(
    x: ArrayLike,
    statistic: Callable[..., np.ndarray] = iqm,
    level: float = 0.95,
    resamples: int | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the percentile bootstrap interval of a statistic over seeds (Agarwal et al. 2021).

    With up to eight seeds, all n^n resamples are enumerated. With few seeds, the coverage is below
    nominal. Nominal 95 % intervals of an IQM cover about 90 % with five seeds, and 93 % with ten;
    intervals of a mean cover 80 to 84 % with five, 86 to 90 % with ten, and 90 to 93 % with twenty.

    Args:
      x: `[seeds]` or `[seeds, points]`; whole seeds are resampled, so that curves stay intact.
      statistic: function of an array and `axis` that does not depend on the order of the seeds.
      level: nominal coverage, 0.95 for 95 %.
      resamples: number of random resamples if there are too many to enumerate; None means
        `DRAWN` for a single point, and a tenth of `DRAWN` for several points.
      seed: seed of the random numbers.

    Returns:
      Lower and upper end, `[]` or `[points]`; for a single seed, both equal the statistic.
    """
    x = np.asarray(x, dtype=np.float64)
    if resamples is None:
        resamples = DRAWN if x.ndim == 1 else DRAWN // 10
    (picks,), weights = _picks([len(x)], resamples, seed)
    columns = x.reshape(len(x), -1).T
    # One point at a time, because all at once need memory for resamples x seeds x points.
    estimates = np.stack([statistic(column[picks], axis=1) for column in columns], axis=1)
    low, high = _ends(estimates, weights, level)
    return low.reshape(x.shape[1:])[()], high.reshape(x.shape[1:])[()]


def stratified_interval(
    arms: Sequence[ArrayLike],
    statistic: Callable[..., np.ndarray],
    level: float = 0.95,
    resamples: int = DRAWN // 10,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the percentile bootstrap interval of a statistic over seeds, stratified over tasks.

    The seeds of every arm on every task are resampled independently, and the statistic is computed
    over all tasks (Agarwal et al. 2021, section 4.1). All resamples are enumerated if at most
    `ENUMERATED` of them are distinct.

    Args:
      arms: arrays `[seeds, tasks]`; the number of seeds may differ between arms.
      statistic: function of one array `[..., seeds, tasks]` per arm that returns `[...]` or
        `[..., points]`.
      level: nominal coverage.
      resamples: number of random resamples if there are too many to enumerate.
      seed: seed of the random numbers.

    Returns:
      Lower and upper end, `[]` or `[points]`.
    """
    scores = [np.asarray(arm, dtype=np.float64) for arm in arms]
    if any(arm.ndim != 2 or not arm.size for arm in scores):
        shapes = ", ".join(str(arm.shape) for arm in scores)
        raise ValueError(f"scores of shape {shapes}: give [seeds, tasks] for every arm")
    strata = [column for arm in scores for column in arm.T]
    picks, weights = _picks([len(stratum) for stratum in strata], resamples, seed)
    drawn = iter([stratum[pick] for stratum, pick in zip(strata, picks, strict=True)])
    resampled = [np.stack([next(drawn) for _ in arm.T], axis=-1) for arm in scores]
    low, high = _ends(np.asarray(statistic(*resampled)), weights, level)
    return low[()], high[()]


def _picks(
    sizes: Sequence[int], resamples: int, seed: int
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Return indices `[resamples, size]` of resamples for each stratum, and the resamples' weights.

    Weights are None for random resamples. Otherwise, all distinct resamples are enumerated.
    """
    if math.prod(math.comb(2 * size - 1, size) for size in sizes) > ENUMERATED:
        rng = np.random.default_rng(seed)
        return [rng.integers(size, size=(resamples, size)) for size in sizes], None
    strata = [_multisets(size) for size in sizes]
    chosen = np.indices([len(weights) for _, weights in strata]).reshape(len(sizes), -1)
    pairs = list(zip(strata, chosen, strict=True))
    picks = [multisets[rows] for (multisets, _), rows in pairs]
    return picks, np.prod([weights[rows] for (_, weights), rows in pairs], axis=0)


def _multisets(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all multisets of `size` indices, and the probability of each as a resample."""
    picks = np.array(list(itertools.combinations_with_replacement(range(size), size)))
    counts = (picks[:, :, None] == np.arange(size)).sum(axis=1)
    ways = [math.factorial(size) / math.prod(map(math.factorial, row)) for row in counts.tolist()]
    return picks, np.array(ways) / float(size) ** size


def _ends(
    estimates: np.ndarray, weights: np.ndarray | None, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper equal-tailed quantiles of estimates `[resamples, ...]`."""
    tail = (1 - level) / 2
    if weights is None:
        low, high = np.quantile(estimates, [tail, 1 - tail], axis=0)
        return low, high
    # Computed from negated estimates, so that negating the data swaps and negates the ends.
    options = {"axis": 0, "weights": weights, "method": "inverted_cdf"}
    low = np.quantile(estimates, tail, **options)
    high = -np.quantile(-estimates, tail, **options)
    broken = np.isnan(estimates).any(axis=0)
    return np.where(broken, np.nan, low), np.where(broken, np.nan, high)
