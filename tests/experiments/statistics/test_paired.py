import dataclasses
import itertools
import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

from experiments.statistics import paired
from experiments.statistics.bootstrap import stratified_interval
from experiments.statistics.decisions import count_pairs
from experiments.statistics.paired import (
    compare_arms,
    compare_pairs,
    holm,
    probability_of_improvement,
    sign_flip_test,
)
from tests.experiments.statistics.test_bootstrap import X, Y
from tests.refusals import refused

INF, NAN = math.inf, math.nan


def test_pairs_equal_values_worked_by_hand():
    pairs = compare_pairs([3.0, 5.0, 4.0, 9.0], [1.0, 5.0, 5.0, 6.0])
    assert pairs.seeds == 4
    assert pairs.differences == (2.0, 0.0, -1.0, 3.0)
    assert pairs.mean == 1.0
    assert pairs.iqm == 1.0  # of 0 and 2
    assert (pairs.wins, pairs.losses, pairs.ties) == (2, 1, 1)
    assert pairs.improvement == 2.5 / 4
    # Of all 16 pairs of seeds, 3 wins one, 5 wins one and ties two, 4 wins one, 9 wins all.
    x, y = np.array([[3.0], [5.0], [4.0], [9.0]]), np.array([[1.0], [5.0], [5.0], [6.0]])
    assert probability_of_improvement(x, y) == (1 + 2 + 1 + 4) / 16
    assert pairs.mean_interval[0] < 1.0 < pairs.mean_interval[1]
    assert pairs.p_holm is None
    # IQM of the differences, not the difference of two IQMs, which is 4 - 1 / 3.
    x, y = [0.0, 1.0, 2.0, 9.0, 9.0], [9.0, 0.0, 0.0, 0.0, 1.0]
    assert compare_pairs(x, y).iqm == pytest.approx((1 + 2 + 8) / 3)


def test_unsolved_seeds_are_compared_by_sign():
    arm, baseline = [100.0, INF, INF, 50.0, 70.0], [INF, INF, 300.0, 60.0, 80.0]
    pairs = compare_pairs(arm, baseline, higher_is_better=False)
    assert (pairs.wins, pairs.losses, pairs.ties) == (3, 1, 1)
    assert pairs.improvement == 3.5 / 5
    assert pairs.differences is pairs.mean is pairs.iqm_interval is None
    assert pairs.p_value == pytest.approx(scipy.stats.binomtest(3, 4).pvalue)
    json.dumps(dataclasses.asdict(pairs), allow_nan=False)
    diverged = compare_pairs([1.0, NAN, NAN], [NAN, NAN, 1.0])
    assert (diverged.wins, diverged.losses, diverged.ties) == (1, 1, 1)
    assert diverged.differences is None


@hypothesis.given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2))
@hypothesis.settings(max_examples=20, deadline=None)
def test_swapping_the_arms_mirrors_all_results(values):
    x, y = np.array(values[:4], dtype=float).T
    forth, back, negated = compare_pairs(x, y), compare_pairs(y, x), compare_pairs(-x, -y, False)
    assert (forth.wins, forth.losses, forth.ties) == (back.losses, back.wins, back.ties)
    assert forth.mean == pytest.approx(-back.mean)
    assert forth.iqm_interval == pytest.approx([-end for end in reversed(back.iqm_interval)])
    mirrored = [1 - end for end in reversed(back.improvement_interval)]
    assert forth.improvement_interval == pytest.approx(mirrored)
    assert forth.p_value == pytest.approx(back.p_value)
    assert forth == negated


@pytest.mark.parametrize("compare", [compare_pairs, count_pairs])
@pytest.mark.parametrize(("arm", "baseline"), [([1.0, 2.0], [1.0]), ([[1.0]], [[1.0]])])
def test_arms_without_pairs_are_refused(arm, baseline, compare):
    with refused(np.shape(arm), np.shape(baseline)):
        compare(arm, baseline)
    with refused("seeds"):
        compare_pairs([1.0], [2.0])  # no interval


@pytest.mark.parametrize("seeds", [3, 6, 13, 15])
def test_sign_flip_test_enumerates_all_sign_flips(seeds):
    values = np.random.default_rng(seeds).normal(0.5, size=seeds).round(1)
    flips = np.array(list(itertools.product([-1, 1], repeat=seeds)))
    means = (flips * values).mean(axis=1)
    # Twice the smaller tail, with tolerance for rounding of sums.
    tails = [(means >= values.mean() - 1e-12).mean(), (means <= values.mean() + 1e-12).mean()]
    assert sign_flip_test(values) == pytest.approx(min(1.0, 2 * min(tails)))


def test_smallest_p_values_follow_from_the_number_of_seeds():
    assert sign_flip_test([1.0, 2.0, 3.0]) == 0.25  # three seeds are never significant
    assert sign_flip_test(np.arange(1.0, 11.0)) == 2 / 2**10
    assert sign_flip_test(np.append(np.full(30, -1e-3), 100.0)) == 1.0  # one outlier
    assert sign_flip_test(np.zeros(5)) == sign_flip_test(np.arange(-20.0, 21.0)) == 1.0
    assert sign_flip_test(np.arange(1.0, 21.0)) == 2 / 2**20


def test_p_values_ignore_zeros_and_order():
    values = np.random.default_rng(1).normal(0.5, size=18)
    expected = sign_flip_test(values)
    assert sign_flip_test([*np.zeros(12), *values[::-1]]) == expected
    assert sign_flip_test(-values) == expected


@pytest.mark.parametrize(("wins", "losses"), [(25, 12), (22, 22), (40, 20), (300, 250)])
def test_sign_flip_test_of_signs_is_the_binomial_test(wins, losses):
    signs = np.repeat([1.0, -1.0], [wins, losses])
    exact = scipy.stats.binomtest(wins, wins + losses).pvalue
    assert sign_flip_test(signs) == pytest.approx(exact)


@pytest.mark.parametrize(
    "values", [np.arange(-6.0, 12.0), np.random.default_rng(2).normal(0.5, size=20)]
)
def test_sign_flip_test_on_a_grid_is_close_and_conservative(monkeypatch, values):
    exact = sign_flip_test(values)
    assert 0.01 < exact < 0.1
    monkeypatch.setattr(paired, "_EXACT", 0)
    assert exact <= sign_flip_test(values) <= exact + 2e-4
    assert sign_flip_test(abs(values)) == pytest.approx(2 / 2 ** np.count_nonzero(values))


def test_holm_correction_equals_values_worked_by_hand():
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert corrected == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(corrected) == ["a", "b", "c", "d"]
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({"a": 0.04}) == {"a": 0.04}
    assert holm({}) == {}


def test_arms_are_compared_with_the_baseline_and_corrected():
    rng = np.random.default_rng(0)
    base = rng.normal(size=10)
    noise = rng.normal(size=(2, 10))
    values = {"far": base + 3 + noise[0], "uniform": base, "near": base + noise[1]}
    compared = compare_arms(values, "uniform")
    assert list(compared) == ["far", "near"]
    assert compared["far"].p_holm == pytest.approx(2 * compared["far"].p_value)
    assert compared["near"].p_holm >= compared["near"].p_value
    with refused("per", "far", "uniform", "near"):
        compare_arms(values, "per")


def test_probability_of_improvement_equals_rliable():
    assert probability_of_improvement(X, Y) == pytest.approx(0.6)
    assert probability_of_improvement(Y, X) == pytest.approx(0.4)
    assert probability_of_improvement(X[:, :1], Y[:, :1]) == pytest.approx(0.7)


def test_intervals_of_the_improvement_equal_rliable():
    # 20 000 resamples give [0.3, 1] for the first task; the statistic has steps of 1 / 40.
    exact = stratified_interval([X[:, :1], Y[:, :1]], probability_of_improvement)
    assert exact == pytest.approx((0.3, 1.0))
    drawn = stratified_interval([X, Y], probability_of_improvement, resamples=20_000)
    assert drawn == pytest.approx((0.375, 0.8167), abs=0.01)
