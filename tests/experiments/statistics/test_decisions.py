import dataclasses
import itertools
import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

from experiments.statistics import decisions
from experiments.statistics.counts import (
    FIXED,
    SEQUENTIAL,
    Counts,
    Test,
    anytime_test,
    clopper_pearson,
    confidence_sequence,
    count_looks,
    count_pairs,
    log_capital,
    log_sign_capital,
    sign_test,
)
from experiments.statistics.decisions import (
    Evidence,
    benjamini_hochberg,
    holm,
    seeds_needed,
    shown_p,
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


def decide(arms, design=SEQUENTIAL, margin=0.1, alpha=0.05, plan=True, **evidence):
    """Decide claims given as counts at their looks."""
    claims = {label: Evidence(looks, **evidence) for label, looks in arms.items()}
    return decisions.decide(claims, design, margin, alpha=alpha, plan=plan)


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
    assert anytime_test([Counts(*counts)]).p_value == pytest.approx(
        min(1.0, 1 / float(closed)), rel=1e-4
    )


@hypothesis.given(counts_of_a_look, st.floats(0.01, 0.99))
@quickly
def test_swapping_arm_and_baseline_mirrors_the_null(counts, m):
    mirrored = Counts(*reversed(counts))
    assert log_capital(counts, m) == pytest.approx(log_capital(mirrored, 1 - m), abs=1e-9)
    low, high = confidence_sequence(counts)
    assert confidence_sequence(mirrored) == pytest.approx((1 - high, 1 - low))
    opposite = {"agrees": "disagrees", "disagrees": "agrees"}
    for design in (SEQUENTIAL, FIXED):
        forth, back = (
            decide({"a": [each]}, design, plan=False)["a"] for each in (counts, mirrored)
        )
        assert back.verdict == opposite.get(forth.verdict, forth.verdict)
        assert back.p_value == pytest.approx(forth.p_value)
        (reversed_,) = decide({"a": [mirrored]}, design, plan=False, direction="worse").values()
        assert (reversed_.verdict, reversed_.p_value) == (forth.verdict, back.p_value)


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


def test_p_values_keep_the_evidence_of_earlier_looks_and_its_sign():
    early, late = Counts(9, 0, 0), Counts(9, 0, 10)
    assert anytime_test([early]) == anytime_test([early, late])
    assert anytime_test([early, late]) == Test(pytest.approx(10 / 2**9), 1, early)
    assert anytime_test([late])[:2] == (1.0, 0)


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
    assert sign_test([counts], m).p_value == pytest.approx(min(1.0, 2 * min(tails)))
    expected = found.proportion_ci(0.99, method="exact")
    assert clopper_pearson(counts, 0.01) == pytest.approx((expected.low, expected.high))


def test_fixed_tests_need_pairs_that_do_not_tie():
    assert sign_test([Counts(5, 0, 0)])[:2] == (2 / 2**5, 1)
    assert sign_test([Counts(0, 30, 0)])[:2] == (1.0, 0)
    with refused("2", "sequential"):
        sign_test([Counts(5, 0, 0), Counts(9, 0, 0)])
    assert clopper_pearson(Counts(0, 30, 0)) == (0.0, 1.0)
    assert clopper_pearson(Counts(0, 0, 10)) == pytest.approx((0.0, 1 - 0.025 ** (1 / 10)))


@hypothesis.given(counts_of_a_look, st.sampled_from([0.01, 0.05]), st.floats(0.05, 0.95))
@quickly
def test_fixed_intervals_exclude_exactly_the_rejected_shares(counts, alpha, m):
    low, high = clopper_pearson(counts, alpha)
    p = sign_test([counts], m).p_value
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


# Decisions


def test_arms_are_decided_at_the_first_possible_look():
    first, second = Counts(9, 0, 3), Counts(16, 0, 3)
    found = decide({"per": [first, second, Counts(16, 0, 30)]})["per"]
    assert (found.verdict, found.counts, found.estimate) == ("agrees", second, 16 / 19)
    assert (found.interval, found.level) == (confidence_sequence(second), 0.95)
    assert found.p_value == found.raw == pytest.approx(float(np.exp(-log_sign_capital(second))))
    json.dumps(dataclasses.asdict(found), allow_nan=False)


@pytest.mark.parametrize("design", [SEQUENTIAL, FIXED])
def test_there_is_no_verdict_from_fewer_than_ten_seeds(design):
    found = decide({"a": [Counts(9, 0, 0)]}, design)["a"]
    assert (found.verdict, found.p_value < 0.05) == ("pilot", True)
    assert decide({"a": [Counts(9, 1, 0)]}, design)["a"].verdict == "agrees"


def test_holm_levels_rise_after_other_arms_are_decided():
    close, clear = Counts(8, 2, 0), Counts(20, 0, 0)  # p = 9 / 256 of close, doubled above 0.05
    found = decide({"a": [close], "b": [close]}, plan=False)
    assert {each.verdict for each in found.values()} == {"undecided"}
    found = decide({"a": [close, Counts(8, 12, 0)], "b": [close, clear]}, plan=False)
    assert {each.verdict for each in found.values()} == {"agrees"}
    assert found["a"].p_value == found["a"].raw == pytest.approx(9 / 2**8)
    assert found["a"].level == 0.975
    assert found["a"].interval == confidence_sequence(Counts(8, 12, 0), 0.025)  # contains 1/2


def test_sign_of_a_verdict_is_that_of_the_evidence():
    """The evidence of 8 wins remains after 9 losses, as evidence that the arm is better."""
    arms = {"a": [Counts(8, 0, 2), Counts(20, 0, 2), Counts(20, 0, 21)]}
    arms["b"] = [Counts(10, 0, 0), Counts(22, 0, 0), Counts(41, 0, 0)]
    held = {label: [looks[0], looks[2]] for label, looks in arms.items()}
    assert decide(held)["a"].verdict == "undecided"
    lucky = {"a": [Counts(8, 2, 0), Counts(8, 2, 9)], "b": [Counts(8, 2, 0), Counts(17, 2, 0)]}
    found = decide(lucky)["a"]
    assert (found.verdict, found.p_value) == ("agrees", pytest.approx(9 / 2**8))


@pytest.mark.parametrize("design", [SEQUENTIAL, FIXED])
def test_arms_that_test_nothing_are_not_part_of_the_family(design):
    own = Evidence([Counts(14, 0, 2)])
    untested = Evidence([Counts(9, 0, 7)], stopped=("not tested", "drew uniformly"))
    control = Evidence([Counts(9, 0, 7)], corrected=False)
    claims = {"own": own, "control": control} | {str(k): untested for k in range(3)}
    found = decisions.decide(claims, design)
    assert found["own"] == decisions.decide({"own": own}, design)["own"]
    assert found["own"].verdict == "agrees" and found["own"].p_value < 0.05
    assert (found["0"].verdict, found["0"].reason) == untested.stopped
    assert found["control"].level == 0.95 and found["control"].verdict == "undecided"
    family = decisions.decide(
        {"own": own} | {str(k): Evidence(own.looks) for k in range(3)}, design
    )
    assert family["own"].p_value == pytest.approx(4 * found["own"].p_value)


def test_least_effects_are_decided_once_and_never_end_as_no_difference():
    """Differences alternate between 2 and 0, then are 2: as often above 1 as below, then above."""
    values = np.concatenate([np.tile([2.0, 0.0], 256), np.full(1_024, 2.0)])
    schedule = range(16, len(values) + 1, 16)
    looks = count_looks(values, np.zeros(len(values)), schedule, effect=1.0)
    found = decide({"a": looks}, exceeds=True)["a"]
    assert found.verdict == "agrees" and 512 < found.seeds < 1_536
    assert decide({"a": looks[:18]}, exceeds=True, plan=False)["a"].verdict == "undecided"
    assert decide({"a": looks})["a"].verdict == "no difference"


def test_no_difference_remains_final_after_holm_levels_rise():
    several = [str(k) for k in range(7)]
    near, clear = Counts(390, 90, 420), Counts(900, 0, 0)
    even = [Counts(450, 0, 450), Counts(500, 0, 500)]
    found = decide({"near": [near]} | {label: [clear] for label in several})["near"]
    assert (found.verdict, found.counts) == ("no difference", near)
    longer = {"near": [near, Counts(390, 90, 520)]}
    after = decide(longer | dict.fromkeys(several, even))["near"]
    assert (after.verdict, after.counts) == ("no difference", near)


@pytest.mark.parametrize("design", [SEQUENTIAL, FIXED])
@pytest.mark.parametrize("counts", [Counts(4, 72, 4), Counts(0, 2_000, 0), Counts(20, 800, 180)])
def test_ties_alone_are_not_no_difference(counts, design):
    """With 90 % ties, mu is within 0.1 of 1/2 even if the arm loses 90 % of the other pairs."""
    (found,) = decide({"same": [counts]}, design, plan=False).values()
    assert found.verdict == ("disagrees" if counts.losses > 100 else "undecided")
    (found,) = decide({"same": [counts]}, design, plan=False, direction="at least as good").values()
    assert found.verdict == ("disagrees" if counts.losses > 100 else "undecided")
    untied = Counts(400, 1_000, 400)
    assert decide({"same": [untied]}, design)["same"].verdict == "no difference"


@pytest.mark.parametrize("counts", [Counts(40, 60, 40), Counts(30, 60, 50), Counts(50, 60, 30)])
def test_margins_exclude_their_endpoints(counts):
    low, high = confidence_sequence(counts)
    edge = max(0.5 - low, high - 0.5)
    for margin, verdict in ((edge, "undecided"), (edge + 0.0005, "no difference")):
        assert decide({"a": [counts]}, margin=margin)["a"].verdict == verdict


def study(seed, seeds=192):
    """Return values of four arms, which are decided early, late or never."""
    rates = {"a": (0.9, 0.05), "b": (0.45, 0.1), "c": (0.28, 0.45), "d": (0.3, 0.0)}
    return {label: draw(*rate, seeds, seed + k) for k, (label, rate) in enumerate(rates.items())}


@pytest.mark.parametrize("seed", [0, 10, 20])
def test_stopped_and_resumed_studies_have_equal_looks_and_decisions(seed):
    schedule, arms = range(16, 193, 16), study(seed)
    whole = {label: at(x, schedule) for label, x in arms.items()}
    final = decide(whole, plan=False)
    assert len({found.verdict for found in final.values()}) >= 2
    for stop in (40, 96, 130):
        part = {label: at(x[:stop], schedule) for label, x in arms.items()}
        assert all(part[label] == whole[label][: stop // 16] for label in arms)
        for label, found in decide(part, plan=False).items():
            assert found == final[label] or found.verdict == "undecided"
    decided = {label: whole[label][: schedule.index(final[label].seeds) + 1] for label in arms}
    assert any(len(decided[label]) < len(whole[label]) for label in arms)
    assert decide(decided, plan=False) == final  # decided arms train no further seeds


def test_margin_decides_no_difference_and_at_least_as_good():
    even = Counts(160, 60, 160)
    assert decide({"a": [even]})["a"].verdict == "no difference"
    assert decide({"a": [even]}, margin=0.02)["a"].verdict == "undecided"
    for margin, verdict in ((0.1, "agrees"), (0.02, "undecided")):
        (found,) = decide({"a": [even]}, margin=margin, direction="at least as good").values()
        assert (
            found.verdict == verdict and found.p_value == anytime_test([even], 0.5 - margin).p_value
        )
    (found,) = decide({"a": [Counts(60, 60, 260)]}, direction="at least as good").values()
    assert found.verdict == "disagrees"


def test_at_least_as_good_claims_are_decided_by_noninferiority_alone():
    values, schedule = draw(0.45, 0.2, 480), range(16, 481, 16)
    whole, options = {"a": at(values, schedule)}, {"direction": "at least as good"}
    found = decide(whole, **options)["a"]
    assert (found.verdict, found.expected) == ("agrees", None)
    assert decide({"a": whole["a"][: found.seeds // 16]})["a"].verdict != "agrees"
    before = decide({"a": whole["a"][:3]}, **options)["a"]
    assert before.verdict == "undecided" and before.expected > 48


@pytest.mark.parametrize("design", [SEQUENTIAL, FIXED])
@pytest.mark.parametrize("arms", [1, 4])
def test_false_answers_to_non_inferiority_are_rare(arms, design):
    """Every arm wins with probability 0.4, the margin: in at most 5 % of studies one agrees."""
    rng, trials, wrong = np.random.default_rng(arms), 100, 0
    schedule = range(32, 129, 32) if design is not FIXED else [10]
    for _ in range(trials):
        signs = rng.choice([1.0, -1.0], p=[0.4, 0.6], size=(arms, 128))
        looks = {str(k): at(own, schedule) for k, own in enumerate(signs)}
        found = decide(looks, design, plan=False, direction="at least as good")
        wrong += any(each.verdict == "agrees" for each in found.values())
    assert wrong / trials <= 0.05


@pytest.mark.parametrize("ties", [0.0, 0.4])
def test_false_differences_among_equal_arms_are_rare_in_fixed_designs(ties):
    rng, trials, wrong = np.random.default_rng(0), 400, 0
    for _ in range(trials):
        rates = [(1 - ties) / 2, ties, (1 - ties) / 2]
        looks = {str(k): [Counts(*own)] for k, own in enumerate(rng.multinomial(16, rates, 4))}
        found = decide(looks, FIXED, plan=False)
        wrong += any(each.verdict != "undecided" for each in found.values())
    assert wrong / trials <= 0.05


def test_studies_without_arms_have_no_decisions():
    assert decide({}) == {}
    with refused("'a'"):
        decide({"a": []})


def test_controls_get_no_plan_and_verdicts_name_the_look_of_their_evidence():
    even = [Counts(8, 0, 8)]
    control = decide({"control": even}, corrected=False)["control"]
    assert control.verdict == "undecided" and control.expected is None
    looks = {"a": [Counts(14, 0, 2), Counts(14, 0, 34)], "b": [Counts(9, 0, 7), Counts(41, 0, 7)]}
    found = decide(looks)["a"]
    assert (found.verdict, found.counts) == ("agrees", (14, 0, 34))
    assert Counts(14, 0, 2).shown in found.reason


# An implementation of the anytime test from the literature, with plain loops


def naive_capital(pairs, m):
    """Return the capital after each pair: the mean over bets of products of likelihood ratios.

    Waudby-Smith and Ramdas 2024: the factor 1 + lambda (x - m) of a bet lambda on mean m. A bet on
    mean q has lambda = (q - m) / (m (1 - m)), which is q / m for x = 1 and (1 - q) / (1 - m) for 0.
    """
    bets, capital = [k / 200 for k in range(1, 200)], [1.0] * 199
    for x in pairs:
        for k, q in enumerate(bets):
            capital[k] *= 1 + (q - m) / (m * (1 - m)) * (x - m)
        yield sum(capital) / len(capital)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("m", [0.4, 0.5])
def test_sequential_judge_equals_a_naive_one(seed, m):
    signs = draw(0.55, 0.1, 60, seed)
    # Ties are no evidence, so that the capital stays as it was.
    capitals = list(naive_capital(((signs + 1) / 2)[signs != 0], m))
    capitals = [capitals[n - 1] if n else 1.0 for n in np.cumsum(signs != 0)]
    schedule = range(10, 61, 10)
    p = anytime_test(at(signs, schedule), m).p_value
    best = max(capitals[n - 1] for n in schedule)
    assert p == pytest.approx(min(1.0, 1 / best), rel=0.02 if m == 0.5 else 1e-9)
    direction = "better" if m == 0.5 else "at least as good"
    found = decide({"a": at(signs, schedule)}, direction=direction, plan=False)["a"]
    first = next((n for n in schedule if capitals[n - 1] >= 20), 60)
    assert found.seeds == first


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
    assert 300 < seeds_needed(pilot, seen=pilot) < 1500
    assert seeds_needed(pilot, seen=Counts(400, 0, 300)) == 16
    expected = decide({"a": [pilot]})["a"].expected
    assert expected == 64 + seeds_needed(pilot, seen=pilot)
    even = Counts(16, 0, 16)
    without = seeds_needed(even, 0.05, 0.1, 0.5, False, chance=0.5)
    assert seeds_needed(even, chance=0.5) < without
    assert seeds_needed(Counts(3, 0, 0)) > seeds_needed(Counts(30, 0, 0)) == 16


def test_promised_seeds_are_kept_about_as_often_as_promised():
    """Rates come from the prior of the estimate; a pilot of 16 seeds makes the promise."""
    rng, kept, trials = np.random.default_rng(0), 0, 0
    for rates in rng.dirichlet(np.ones(3), 90):
        pilot = rng.multinomial(16, rates)
        more = seeds_needed(Counts(*pilot.tolist()), seen=Counts(*pilot.tolist()))
        if more is None or decide({"a": [Counts(*pilot)]}, plan=False)["a"].verdict != "undecided":
            continue
        later = pilot + rng.multinomial(16, rates, size=more // 16).cumsum(axis=0)
        looks = [Counts(*pilot), *(Counts(*each) for each in later.tolist())]
        kept += decide({"a": looks}, plan=False)["a"].verdict != "undecided"
        trials += 1
    assert trials > 30 and 0.7 < kept / trials < 0.95
