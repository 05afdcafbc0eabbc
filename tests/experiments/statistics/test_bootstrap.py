"""Bootstrap intervals: exact ones from all resamples, and coverage of sampled ones."""

import itertools
import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from experiments.statistics.bootstrap import bootstrap_interval, iqm, stratified_interval
from tests.refusals import refused

# Scores [seeds, tasks]; expected values below are from rliable 1.2.0 (numpy 2.4.6, scipy 1.17.1).
X = np.array([[0.2, 1.5, 0.0], [0.9, 1.1, 0.4], [0.5, 0.7, 0.4], [1.3, 2.0, 0.1], [0.6, 0.9, 0.8]])
Y = np.array([[0.5, 0.7, 0.3], [0.1, 1.6, 0.4], [0.9, 0.3, 0.0], [0.4, 1.2, 0.9]])


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 2.0, 6.0], 3.0),  # fewer than four seeds: the mean
        ([100.0, 1.0, 3.0, -50.0], 2.0),
        ([0.0, 1.0, 2.0, 6.0, 1000.0], 3.0),  # five seeds: the middle three
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 99.0], 4.5),
    ],
)
def test_iqm_is_the_mean_of_the_middle_half(x, expected):
    assert iqm(x) == pytest.approx(expected)
    both = np.stack([x, np.append(x[1:], np.nan)], axis=1)
    np.testing.assert_allclose(iqm(both, axis=0), [expected, np.nan])  # one seed diverged


@pytest.mark.parametrize("x", [[3.5], [2.0] * 5, [0.1] * 7])
def test_interval_without_spread_is_the_value_without_warnings(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(bootstrap_interval(x), x[0], rtol=1e-12)


def test_intervals_are_reproducible_and_independent_of_other_points():
    x = np.random.default_rng(0).normal(size=(5, 3))
    low, high = bootstrap_interval(x)
    assert low.shape == high.shape == (3,)
    for point in range(3):
        assert bootstrap_interval(x[:, point]) == (low[point], high[point])


def of_all(estimates, level=0.95):
    """Return the quantiles (1 - level) / 2 on either side of all n^n equally likely estimates."""
    tail = (1 - level) / 2
    low, high = (np.quantile(s * estimates, tail, method="inverted_cdf") for s in (1, -1))
    return low, -high


@hypothesis.given(st.lists(st.integers(-20, 20), min_size=2, max_size=5))
@hypothesis.settings(max_examples=30, deadline=None)
def test_few_seeds_give_the_quantiles_of_all_resamples(values):
    x = np.array(values, dtype=float)
    resamples = x[np.array(list(itertools.product(range(len(x)), repeat=len(x))))]
    for statistic in (iqm, np.mean, np.median):
        expected = of_all(statistic(resamples, axis=1))
        np.testing.assert_allclose(bootstrap_interval(x, statistic), expected, atol=1e-12)


@pytest.mark.parametrize("seeds", [4, 12])
def test_interval_with_a_diverged_seed_is_nan(seeds):
    x = np.ones((seeds, 2))
    x[0, 1] = np.nan
    low, high = bootstrap_interval(x)
    np.testing.assert_array_equal([low, high], [[1.0, np.nan]] * 2)


def test_stratified_intervals_resample_each_task_independently():
    scores = np.array([[0.0, 10.0], [1.0, 30.0]])

    def median(x):
        assert x.shape[-2:] == (2, 2) and (x[..., 0] <= 1).all() and (x[..., 1] >= 10).all()
        return np.median(x.mean(axis=-2), axis=-1)

    pairs = np.array(list(itertools.product([0, 1], repeat=2)))
    every = [np.stack([scores[a, 0], scores[b, 1]], -1) for a in pairs for b in pairs]
    for level in (0.95, 0.5, 0.2):
        expected = of_all(median(np.array(every)), level)
        assert stratified_interval([scores], median, level) == pytest.approx(expected)


def test_iqm_interval_of_all_runs_equals_rliable():
    def iqm_of_runs(scores):
        return iqm(scores.reshape(*scores.shape[:-2], -1), axis=-1)

    for scores, middle, interval in (
        (X, 0.7, [0.511111, 0.922222]), (Y, 0.533333, [0.316667, 0.8])  # of 50 000 resamples
    ):  # fmt: skip
        np.testing.assert_allclose(iqm_of_runs(np.stack([scores, scores])), [middle] * 2, atol=1e-6)
        ends = stratified_interval([scores], iqm_of_runs, resamples=20_000)
        np.testing.assert_allclose(ends, interval, atol=0.026)


def test_two_arms_are_resampled_independently():
    x, y = np.array([[0.0], [1.0]]), np.array([[0.0], [10.0]])
    low, high = stratified_interval([x, y], lambda a, b: (b - a).mean(axis=(-2, -1)))
    assert (low, high) == (-1.0, 10.0)  # joint resampling would give 0 and 9


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0)])
def test_scores_without_seeds_or_tasks_are_refused(shape):
    with refused(shape, "[seeds, tasks]"):
        stratified_interval([np.zeros(shape)], np.mean)
