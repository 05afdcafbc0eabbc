"""Counts of pairs, capital, p-values and intervals, against scipy, vectors and simulations."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

from experiments.statistics.counts import (
    Counts,
    anytime_test,
    benjamini_hochberg,
    clopper_pearson,
    confidence_sequence,
    count_looks,
    count_pairs,
    holm,
    log_capital,
    log_sign_capital,
    p_value_of,
    shown_p,
    sign_test,
)
from tests.refusals import refused

INF, NAN = math.inf, math.nan
NULLS = np.arange(1, 2000) / 2000
quickly = hypothesis.settings(max_examples=15, deadline=None)
counts_of_a_look = st.builds(Counts, *[st.integers(0, 80)] * 3)


def draw(win, tie, shape, seed=0):
    """Return differences from a baseline of zeros: 1 is a win, 0 a tie, -1 a loss."""
    return np.random.default_rng(seed).choice([1, 0, -1], size=shape, p=[win, tie, 1 - win - tie])


def at(values, schedule):
    return count_looks(values, np.zeros(len(values)), schedule)


# Counts of pairs


def test_pairs_are_counted():
    assert count_pairs([3.0, 5.0, 4.0, 9.0], [1.0, 5.0, 5.0, 6.0]) == (2, 1, 1)
    assert count_pairs([3.0, 5.0, 4.0], [1.0, 5.0, 6.0], higher_is_better=False) == (1, 1, 1)
    assert (Counts(2, 1, 1).pairs, Counts(2, 1, 1).mean) == (4, 2.5 / 4)


@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize("none", [None, NAN, INF, -INF])
def test_nan_is_worse_than_any_number_and_equal_to_nan(none, higher_is_better):
    arm, baseline = [none, none, -1e300, 1e300], [NAN, 1e300, none, None]
    assert count_pairs(arm, baseline, higher_is_better) == (2, 1, 1)


def test_least_effects_shift_ties():
    arm, baseline = [3.0, 2.0, 1.0, None, None, 9.0], [0.0, 0.0, 0.0, None, 5.0, None]
    assert count_pairs(arm, baseline, effect=2.0) == (2, 2, 2)  # two seeds without a number tie
    negated = [None if value is None else -value for value in arm]
    assert count_pairs(negated, baseline, higher_is_better=False, effect=2.0) == (2, 2, 2)


@pytest.mark.parametrize("effect", [-1.0, 0.0, 1.0])
def test_two_seeds_without_a_number_tie_whatever_the_effect(effect):
    assert count_pairs([None, NAN, INF], [None, INF, -INF], effect=effect) == (0, 3, 0)


@pytest.mark.parametrize(("arm", "baseline"), [([1.0, 2.0], [1.0]), ([[1.0]], [[1.0]])])
def test_arms_without_pairs_are_refused(arm, baseline):
    with refused(np.shape(arm), np.shape(baseline)):
        count_pairs(arm, baseline)


def test_incomplete_looks_are_not_counted():
    assert at([1, 1, 0, -1, 1], [2, 4, 6, 8]) == [(2, 0, 0), (2, 1, 1)]
    assert at([1], [2, 4, 6, 8]) == []


# Capital, p-values and intervals


@pytest.mark.parametrize(
    ("counts", "closed", "grid", "at_05", "at_0125"),
    [
        ((10, 1, 5), "0.68198", "0.68541", (0.3125, 0.9090), (0.2665, 0.9310)),
        ((8, 3, 5), "0.45466", "0.45694", (0.2790, 0.8575), (0.2375, 0.8855)),
        ((18, 1, 1), "1379.7", "1385.5", (0.6385, 0.9970), (0.5885, 0.9985)),
        ((16, 0, 4), "10.306", "10.358", (0.4740, 0.9700), (0.4250, 0.9795)),
        ((0, 0, 10), "93.091", "91.007", (0.0005, 0.4180), (0.0005, 0.4935)),
        ((40, 30, 30), "0.30043", "0.30194", (0.4190, 0.6760), (0.4020, 0.6915)),
        ((150, 40, 66), "1.5063e+06", "1.5138e+06", (0.5720, 0.7480), (0.5605, 0.7570)),
        ((5, 90, 5), "0.36941", "0.37126", (0.4465, 0.5535), (0.4365, 0.5635)),
    ],
)
def test_capital_p_values_and_intervals_equal_vectors(counts, closed, grid, at_05, at_0125):
    assert f"{np.exp(log_sign_capital(counts)):.5g}" == closed
    assert f"{np.exp(log_capital(counts, 0.5)):.5g}" == grid
    assert confidence_sequence(Counts(*counts), 0.05) == at_05
    assert confidence_sequence(Counts(*counts), 0.0125) == at_0125
    assert anytime_test([Counts(*counts)])[0] == pytest.approx(
        min(1.0, 1 / float(closed)), rel=1e-4
    )


@hypothesis.given(counts_of_a_look, st.floats(0.01, 0.99))
@quickly
def test_swapping_arm_and_baseline_mirrors_the_null(counts, m):
    mirrored = Counts(*reversed(counts))
    assert log_capital(counts, m) == pytest.approx(log_capital(mirrored, 1 - m), abs=1e-9)
    low, high = confidence_sequence(counts)
    assert confidence_sequence(mirrored) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize(("m", "tie"), [(0.3, 0.0), (0.3, 0.5), (0.5, 0.0), (0.5, 0.4), (0.8, 0.3)])
def test_mean_capital_under_the_null_is_one(n, m, tie):
    counts = np.array([c for c in itertools.product(range(n + 1), repeat=3) if sum(c) == n]).T
    rates = [m - tie / 2, tie, 1 - m - tie / 2]
    chances = scipy.stats.multinomial.pmf(counts.T, n, rates)
    assert chances @ np.exp(log_capital(counts, m)) == pytest.approx(1.0)
    if m == 0.5:
        assert chances @ np.exp(log_sign_capital(counts)) == pytest.approx(1.0)


@pytest.mark.parametrize("tie", [0.0, 0.3])
def test_type_one_error_is_bounded_with_looks_after_every_seed(tie):
    x = draw((1 - tie) / 2, tie, (2000, 512))
    totals = [np.cumsum(x == score, axis=1) for score in (1, 0, -1)]
    assert (log_sign_capital(totals) >= math.log(20)).any(axis=1).mean() <= 0.05


@pytest.mark.parametrize(("m", "tie"), [(0.3, 0.2), (0.6, 0.0)])
def test_confidence_sequences_cover_at_all_looks(m, tie):
    x = draw(m - tie / 2, tie, (2000, 256))
    totals = [np.cumsum(x == score, axis=1)[:, 15::16] for score in (1, 0, -1)]
    assert (log_capital(totals, m) >= math.log(20)).any(axis=1).mean() <= 0.05


@hypothesis.given(counts_of_a_look)
@quickly
def test_intervals_contain_all_nulls_of_small_capital(counts):
    for alpha in (0.05, 0.0125):
        inside = NULLS[log_capital(counts, NULLS) < -math.log(alpha)]
        low, high = confidence_sequence(counts, alpha)
        assert (low, high) == (inside[0], inside[-1])
        assert len(inside) == round((high - low) * 2000) + 1  # no gaps
    assert confidence_sequence(Counts()) == (0.0005, 0.9995)


def test_p_values_keep_the_evidence_of_earlier_looks():
    early, late = Counts(9, 0, 0), Counts(9, 0, 10)
    assert anytime_test([early]) == anytime_test([early, late])
    assert anytime_test([early, late]) == (pytest.approx(10 / 2**9), early)
    assert anytime_test([late]) == (1.0, late)


# Exact tests of a fixed number of seeds


@pytest.mark.parametrize(
    ("counts", "m"), [((8, 3, 1), 0.5), ((1, 0, 9), 0.4), ((25, 2, 12), 0.5), ((300, 9, 250), 0.4)]
)
def test_sign_test_and_its_interval_equal_scipy(counts, m):
    counts = Counts(*counts)
    pairs = counts.wins + counts.losses
    found = scipy.stats.binomtest(counts.wins, pairs, m)
    tails = [
        scipy.stats.binomtest(counts.wins, pairs, m, alternative=side).pvalue
        for side in ("less", "greater")
    ]
    assert sign_test(counts, m) == pytest.approx(min(1.0, 2 * min(tails)))
    expected = found.proportion_ci(0.99, method="exact")
    assert clopper_pearson(counts, 0.01) == pytest.approx((expected.low, expected.high))


def test_fixed_tests_need_pairs_that_do_not_tie():
    assert sign_test(Counts(5, 0, 0)) == 2 / 2**5
    assert sign_test(Counts(0, 30, 0)) == 1.0
    with refused("2", "sequential"):
        p_value_of([Counts(5, 0, 0), Counts(9, 0, 0)], 0.5, sequential=False)
    assert clopper_pearson(Counts(0, 30, 0)) == (0.0, 1.0)
    assert clopper_pearson(Counts(0, 0, 10)) == pytest.approx((0.0, 1 - 0.025 ** (1 / 10)))


@hypothesis.given(counts_of_a_look, st.sampled_from([0.01, 0.05]), st.floats(0.05, 0.95))
@quickly
def test_fixed_intervals_exclude_exactly_the_rejected_shares(counts, alpha, m):
    low, high = clopper_pearson(counts, alpha)
    p = sign_test(counts, m)
    hypothesis.assume(abs(p - alpha) > 1e-9)
    assert (p < alpha) == (not low <= m <= high)


def test_holm_correction_equals_values_worked_by_hand():
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert corrected == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(corrected) == ["a", "b", "c", "d"]
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_benjamini_hochberg_equals_scipy():
    p_values = [0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205, 0.212, 0.216]
    adjusted = scipy.stats.false_discovery_control(p_values)
    assert benjamini_hochberg(p_values) == list(adjusted <= 0.05) == [True] * 2 + [False] * 8
    assert benjamini_hochberg([]) == []


@pytest.mark.parametrize(
    ("p", "shown"), [(0.0498, "0.0498"), (0.04996, "0.04996"), (0.05, "0.05"), (0.0312, "0.031"),
                     (0.0504, "0.05"), (1e-7, "1e-07")],
)  # fmt: skip
def test_rounding_never_moves_a_p_value_below_or_to_alpha(p, shown):
    assert shown_p(p) == shown
