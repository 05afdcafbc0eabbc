import dataclasses
import itertools
import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

from experiments.statistics.decisions import (
    Counts,
    Decision,
    answer,
    anytime_p,
    count_looks,
    count_pairs,
    decide,
    interval,
    log_capital,
    log_sign_capital,
    seeds_needed,
)
from experiments.statistics.paired import compare_pairs

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
    assert (Counts(2, 1, 1).seeds, Counts(2, 1, 1).mean) == (4, 2.5 / 4)


@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize("none", [None, NAN, INF, -INF])
def test_nan_is_worse_than_any_number_and_equal_to_nan(none, higher_is_better):
    arm, baseline = [none, none, -1e300, 1e300], [NAN, 1e300, none, None]
    assert count_pairs(arm, baseline, higher_is_better) == (2, 1, 1)


def test_least_effects_shift_ties():
    arm, baseline = [3.0, 2.0, 1.0, None, None, 9.0], [0.0, 0.0, 0.0, None, 5.0, None]
    assert count_pairs(arm, baseline, effect=2.0) == (2, 1, 3)
    negated = [None if value is None else -value for value in arm]
    assert count_pairs(negated, baseline, higher_is_better=False, effect=2.0) == (2, 1, 3)


@hypothesis.given(st.lists(st.tuples(*[st.sampled_from([NAN, INF, 0.0, 1.0])] * 2), min_size=2))
@quickly
def test_counts_equal_those_of_the_paired_comparison(values):
    x, y = np.array(values[:8]).T
    pairs = compare_pairs(x, y, higher_is_better=False)
    assert count_pairs(x, y, higher_is_better=False) == (pairs.wins, pairs.ties, pairs.losses)


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
    assert interval(Counts(*counts), 0.05) == at_05
    assert interval(Counts(*counts), 0.0125) == at_0125
    assert anytime_p([Counts(*counts)]) == pytest.approx(min(1.0, 1 / float(closed)), rel=1e-4)


@hypothesis.given(counts_of_a_look, st.floats(0.01, 0.99))
@quickly
def test_swapping_arm_and_baseline_mirrors_the_null(counts, m):
    mirrored = Counts(*reversed(counts))
    assert log_capital(counts, m) == pytest.approx(log_capital(mirrored, 1 - m), abs=1e-9)
    low, high = interval(counts)
    assert interval(mirrored) == pytest.approx((1 - high, 1 - low))
    forth, back = (decide({"a": [each]}, plan=False)["a"] for each in (counts, mirrored))
    opposite = {"better": "worse", "worse": "better"}
    assert back.verdict == opposite.get(forth.verdict, forth.verdict)
    assert back.p_value == pytest.approx(forth.p_value)


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
        low, high = interval(counts, alpha)
        assert (low, high) == (inside[0], inside[-1])
        assert len(inside) == round((high - low) * 2000) + 1  # no gaps
    assert interval(Counts()) == (0.0005, 0.9995)


def test_p_values_keep_the_evidence_of_earlier_looks():
    early, late = Counts(9, 0, 0), Counts(9, 0, 8)
    assert anytime_p([early]) == anytime_p([early, late]) < anytime_p([late]) == 1.0


# Decisions


def test_arms_are_decided_at_the_first_possible_look():
    first, second = Counts(7, 0, 0), Counts(8, 0, 0)  # capital of n wins: 2^n / (n + 1)
    found = decide({"per": [first, second, Counts(8, 0, 30)]})["per"]
    assert found == Decision("better", second, 1.0, interval(second), found.p_value, seeds=8)
    assert found.p_value == pytest.approx(9 / 2**8)
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_holm_levels_rise_after_other_arms_are_decided():
    close, clear = Counts(8, 0, 0), Counts(20, 0, 0)  # p = 9 / 256 of close, doubled above 0.05
    found = decide({"a": [close], "b": [close]}, plan=False)
    assert {each.verdict for each in found.values()} == {"undecided"}
    found = decide({"a": [close, Counts(8, 12, 0)], "b": [close, clear]}, plan=False)
    assert {each.verdict for each in found.values()} == {"better"}
    assert found["a"].p_value == pytest.approx(9 / 2**8)
    assert found["a"].interval == interval(Counts(8, 12, 0), 0.025)  # contains 1/2

    level = [close, Counts(8, 0, 8)]  # evidence of an earlier look, but no direction now
    found = decide({"a": level, "b": [close, Counts(16, 0, 0)]}, plan=False)
    assert found["a"].p_value < 0.05 and found["a"].verdict == "undecided"


def test_no_difference_remains_final_after_holm_levels_rise():
    several = [str(k) for k in range(7)]
    near, clear = Counts(10, 290, 0), Counts(300, 0, 0)
    arms = {"near": [near, Counts(10, 300, 0)]}
    arms |= {label: [Counts(150, 0, 150), Counts(160, 0, 150)] for label in several}
    found = decide(arms, plan=False)["near"]
    assert (found.verdict, found.counts) == ("no difference", near)
    assert anytime_p([near]) < 0.05 < found.p_value
    assert decide({"near": [near]} | {label: [clear] for label in several})["near"] == (
        dataclasses.replace(found, verdict="better", p_value=anytime_p([near]))
    )
    arms |= {label: [Counts(150, 0, 150), Counts(900, 0, 150)] for label in several}
    arms["near"] = [near]
    after = decide(arms, plan=False)
    assert after["near"] == found and after["0"].verdict == "better"


def test_ties_only_end_as_no_difference():
    schedule = range(4, 257, 4)
    assert log_sign_capital([0, 256, 0]) == pytest.approx(0.0)
    assert anytime_p([Counts(0, seeds, 0) for seeds in schedule]) == 1.0
    for alpha in (0.05, 0.0125):
        found = decide({"same": at(np.zeros(256), schedule)}, alpha)["same"]
        low, high = interval(Counts(0, found.seeds - 4, 0), alpha)
        assert (found.verdict, found.p_value) == ("no difference", 1.0)
        assert found.interval[0] > 0.4 and found.interval[1] < 0.6
        assert low <= 0.4 or high >= 0.6  # one look earlier
        assert 16 < found.seeds < 256


@pytest.mark.parametrize("counts", [Counts(5, 90, 5), Counts(4, 90, 6), Counts(6, 90, 4)])
def test_margins_exclude_their_endpoints(counts):
    low, high = interval(counts)
    edge = max(0.5 - low, high - 0.5)
    for margin, verdict in ((edge, "undecided"), (edge + 0.0005, "no difference")):
        assert decide({"a": [counts]}, margin=margin)["a"].verdict == verdict


def study(seed, seeds=192):
    """Return values of four arms, which are decided early, late or never."""
    rates = {"a": (0.9, 0.05), "b": (0.45, 0.1), "c": (0.02, 0.96), "d": (0.3, 0.0)}
    return {label: draw(*rate, seeds, seed + k) for k, (label, rate) in enumerate(rates.items())}


@pytest.mark.parametrize("seed", [0, 10, 20])
def test_stopped_and_resumed_studies_have_equal_looks_and_decisions(seed):
    schedule, arms = range(16, 193, 16), study(seed)
    whole = {label: at(x, schedule) for label, x in arms.items()}
    final = decide(whole, plan=False)
    assert len({found.verdict for found in final.values()}) >= 3
    for stop in (40, 96, 130):
        part = {label: at(x[:stop], schedule) for label, x in arms.items()}
        assert all(part[label] == whole[label][: stop // 16] for label in arms)
        for label, found in decide(part, plan=False).items():
            assert found == final[label] or found.verdict == "undecided"
    decided = {label: whole[label][: schedule.index(final[label].seeds) + 1] for label in arms}
    assert any(len(decided[label]) < len(whole[label]) for label in arms)
    assert decide(decided, plan=False) == final  # decided arms train no further seeds


def test_claims_override_the_margin():
    arms = {"a": [Counts(5, 90, 5)], "b": [Counts(5, 90, 5)]}
    found = decide(arms, 0.1, claims={"b": ("better", 0.02)})  # intervals at 0.05
    assert [each.verdict for each in found.values()] == ["no difference", "undecided"]
    assert found["a"].expected is None and found["b"].expected > 100


@pytest.mark.parametrize(
    ("claim", "verdict", "interval", "expected"),
    [
        ("better", "better", (0.1, 0.9), "agrees"),
        ("better", "worse", (0.1, 0.9), "disagrees"),
        ("worse", "better", (0.1, 0.9), "disagrees"),
        ("worse", "worse", (0.1, 0.9), "agrees"),
        ("better", "no difference", (0.1, 0.9), "no difference"),
        ("worse", "undecided", (0.1, 0.9), "undecided"),
        # "At least as good" depends only on whether the interval lies above the margin.
        ("at least as good", "undecided", (0.4005, 0.7), "agrees"),
        ("at least as good", "undecided", (0.4, 0.7), "undecided"),
        ("at least as good", "worse", (0.2, 0.45), "undecided"),
        ("at least as good", "worse", (0.2, 0.3995), "disagrees"),
    ],
)
def test_decisions_answer_claims(claim, verdict, interval, expected):
    assert answer(claim, verdict, interval) == expected


def test_at_least_as_good_claims_are_decided_by_noninferiority_alone():
    values, schedule = draw(0.45, 0.2, 480), range(16, 481, 16)
    claims = {"a": ("at least as good", 0.1)}
    found = decide({"a": at(values, schedule)}, claims=claims)["a"]
    assert found.seeds < decide({"a": at(values, schedule)})["a"].seeds
    assert found.interval[0] > 0.4 and found.verdict == "undecided" and found.expected is None
    before = decide({"a": at(values, schedule)[:3]}, claims=claims)["a"]
    assert before.interval[0] <= 0.4 and before.expected > 48


def test_studies_without_arms_have_no_decisions():
    assert decide({}) == {}


# Planning


@pytest.mark.parametrize(
    ("mu", "tie", "alpha", "median", "most"),
    [
        (0.5, 0.3, 0.05, 256, 400),
        (0.6, 0.0, 0.05, 240, 512),
        (0.65, 0.3, 0.05, 80, 144),
        (0.9, 0.0, 0.05, 16, 32),
        (0.5, 0.3, 0.0125, 320, 480),
        (0.65, 0.3, 0.0125, 96, 176),
        (0.9, 0.0, 0.0125, 32, 32),
    ],
)
def test_seeds_needed_agree_with_simulated_studies(mu, tie, alpha, median, most):
    known = Counts(*(round(1e6 * rate) for rate in (mu - tie / 2, tie, 1 - mu - tie / 2)))
    for chance, expected in ((0.5, median), (0.9, most)):
        assert abs(seeds_needed(known, alpha, chance=chance) - expected) <= max(16, 0.1 * expected)


def test_seeds_needed_include_seeds_beyond_the_pilot():
    pilot = Counts(34, 0, 30)  # 0.53
    assert 500 < seeds_needed(pilot, seen=pilot) < 1500
    assert seeds_needed(pilot, seen=Counts(400, 0, 300)) == 16
    expected = decide({"a": [pilot]})["a"].expected
    assert expected == 64 + seeds_needed(pilot, seen=pilot)
    even = Counts(16, 0, 16)
    assert seeds_needed(even, claim="at least as good") < seeds_needed(even)
    assert seeds_needed(Counts(3, 0, 0)) > seeds_needed(Counts(30, 0, 0)) == 16
