"""Aggregates over tasks, beside rliable's and by hand."""

import numpy as np
import pytest

from experiments.statistics import aggregates
from experiments.statistics.aggregates import gain, min_max, normalised, profile, share_above
from experiments.statistics.atari_scores import SCORES
from experiments.statistics.bootstrap import stratified_interval
from tests.refusals import refused

# Scores [seeds, tasks], and below what rliable 1.2.0 (numpy 2.4.6, scipy 1.17.1) says of them.
X = np.array([[0.2, 1.5, 0.0], [0.9, 1.1, 0.4], [0.5, 0.7, 0.4], [1.3, 2.0, 0.1], [0.6, 0.9, 0.8]])
Y = np.array([[0.5, 0.7, 0.3], [0.1, 1.6, 0.4], [0.9, 0.3, 0.0], [0.4, 1.2, 0.9]])
TAUS = [0.0, 0.15, 0.5, 0.9, 1.0, 1.5]
# Of an aggregate: of X, of Y, and the intervals of 50 000 resamples.
RLIABLE = {
    "iqm_of_runs": (0.7, 0.533333, [0.511111, 0.922222], [0.316667, 0.8]),
    "median_of_tasks": (0.7, 0.475, [0.4, 1.0], [0.275, 0.775]),
    "mean_of_tasks": (0.76, 0.608333, [0.573333, 0.953333], [0.4, 0.825]),
    "optimality_gap": (0.366667, 0.458333, [0.246667, 0.486667], [0.283333, 0.625]),
}


@pytest.mark.parametrize("name", RLIABLE)
def test_aggregates_and_their_intervals_are_those_of_rliable(name):
    aggregate = getattr(aggregates, name)
    of_x, of_y, interval_x, interval_y = RLIABLE[name]
    assert aggregate(X) == pytest.approx(of_x, abs=1e-6)
    assert aggregate(Y) == pytest.approx(of_y, abs=1e-6)
    np.testing.assert_allclose(aggregate(np.stack([X, X])), [of_x] * 2, atol=1e-6)
    for scores, interval in ((X, interval_x), (Y, interval_y)):
        ends = stratified_interval([scores], aggregate, resamples=20_000)
        np.testing.assert_allclose(ends, interval, atol=0.026)  # one step of the median


def test_profiles_are_those_of_rliable():
    for scores, shares, lows, highs in (
        (X, [56, 52, 36, 16, 16, 4], [48, 44, 24, 4, 4, 0], [60, 60, 48, 28, 28, 12]),
        (Y, [55, 50, 25, 10, 10, 5], [45, 35, 10, 0, 0, 0], [60, 60, 40, 20, 20, 15]),
    ):
        share, low, high = profile(scores, TAUS)
        np.testing.assert_allclose(60 * share, shares)
        one_run = 60 / scores.size  # the steps of the distribution
        np.testing.assert_allclose(60 * low, lows, atol=1.01 * one_run)
        np.testing.assert_allclose(60 * high, highs, atol=1.01 * one_run)
    assert share_above([[np.nan], [1.0]], [-1e9]) == pytest.approx([0.5])  # one has diverged


def test_normalised_by_hand():
    scores = normalised([[5.0, -3.0], [0.0, 1.0]], random=[1.0, 1.0], reference=[3.0, -1.0])
    np.testing.assert_allclose(scores, [[2.0, -2.0], [-0.5, 0.0]])
    with refused("random"):
        normalised([1.0], [2.0], [2.0])


def test_normalised_scores_of_atari_are_those_of_the_paper():
    """Brittain et al. 2019, Tab. 1 from Tab. 5, which it prints as 88, 607, 109 and 832 %."""
    random, human, per, pser = np.array(list(SCORES.values())).T
    assert len(SCORES) == 55
    for scores, median, mean in ((per, 87.5, 606.9), (pser, 108.5, 831.9)):
        of_games = normalised(scores[None], random, human)
        assert 100 * aggregates.median_of_tasks(of_games) == pytest.approx(median, abs=0.05)
        assert 100 * aggregates.mean_of_tasks(of_games) == pytest.approx(mean, abs=0.05)
    assert (np.sum(pser > per), np.sum(pser < per), np.sum(pser == per)) == (37, 15, 3)


def test_min_max_is_within_the_comparison():
    scaled = min_max({"a": [[0.0, 5.0], [2.0, 5.0]], "b": [[4.0, 5.0], [1.0, 5.0]]})
    np.testing.assert_allclose(scaled["a"], [[0.0, 0.0], [0.5, 0.0]])
    np.testing.assert_allclose(scaled["b"], [[1.0, 0.0], [0.25, 0.0]])


def test_gain_is_over_the_size_of_the_baseline():
    np.testing.assert_allclose(gain([3.0, -1.0], [2.0, -4.0]), [0.5, 0.75])
    with refused("gain", "0"):
        gain([1.0], [0.0])
