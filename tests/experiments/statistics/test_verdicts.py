"""Decisions about families of claims, against simulations and a judge with plain loops."""

import json

import hypothesis
import numpy as np
import pytest

from experiments.statistics import verdicts
from experiments.statistics.claims import Claim
from experiments.statistics.counts import (
    Counts,
    anytime_test,
    confidence_sequence,
    count_looks,
    log_sign_capital,
)
from experiments.statistics.evidence import Evidence
from experiments.statistics.planning import seeds_needed
from tests.experiments.statistics.test_counts import at, counts_of_a_look, draw, quickly
from tests.refusals import refused


def evidence_of(looks, stopped=None, corrected=True, **claim):
    """Return a claim with its counts at looks."""
    return Evidence(Claim("a claim", "arm", "base", **claim), looks, stopped, corrected)


def decide(arms, sequential=True, margin=0.1, plan=True, **evidence):
    """Decide claims given as counts at their looks."""
    claims = {label: evidence_of(looks, **evidence) for label, looks in arms.items()}
    return verdicts.decide(claims, sequential, margin, plan)


@hypothesis.given(counts_of_a_look)
@quickly
def test_swapping_arm_and_baseline_swaps_agreement(counts):
    mirrored = Counts(*reversed(counts))
    opposite = {"agrees": "disagrees", "disagrees": "agrees"}
    for sequential in (True, False):
        forth, back = (
            decide({"a": [each]}, sequential, plan=False)["a"] for each in (counts, mirrored)
        )
        assert back.verdict == opposite.get(forth.verdict, forth.verdict)
        assert back.p_value == pytest.approx(forth.p_value)
        worse = decide({"a": [mirrored]}, sequential, plan=False, direction="worse")["a"]
        assert (worse.verdict, worse.p_value) == (forth.verdict, back.p_value)
        compared = decide({"a": [counts]}, sequential, plan=False, direction="either")["a"]
        words = {"agrees": "better", "disagrees": "worse"}
        assert compared.verdict == words.get(forth.verdict, forth.verdict)
        assert compared.p_value == forth.p_value


def test_arms_are_decided_at_the_first_possible_look():
    first, second = Counts(9, 0, 3), Counts(16, 0, 3)
    found = decide({"per": [first, second, Counts(16, 0, 30)]})["per"]
    assert (found.verdict, found.counts, found.estimate) == ("agrees", second, 16 / 19)
    assert (found.interval, found.level) == (confidence_sequence(second), 0.95)
    assert found.p_value == found.raw == pytest.approx(float(np.exp(-log_sign_capital(second))))
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("sequential", [True, False])
def test_there_is_no_verdict_from_fewer_than_ten_seeds(sequential):
    found = decide({"a": [Counts(9, 0, 0)]}, sequential)["a"]
    assert (found.verdict, found.p_value < 0.05) == ("pilot", True)
    assert decide({"a": [Counts(9, 1, 0)]}, sequential)["a"].verdict == "agrees"


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


@pytest.mark.parametrize("sequential", [True, False])
def test_arms_that_test_nothing_are_not_part_of_the_family(sequential):
    own = evidence_of([Counts(14, 0, 2)])
    untested = evidence_of([Counts(9, 0, 7)], stopped=("not tested", "drew uniformly"))
    control = evidence_of([Counts(9, 0, 7)], corrected=False)
    claims = {"own": own, "control": control} | {str(k): untested for k in range(3)}
    found = verdicts.decide(claims, sequential)
    assert found["own"] == verdicts.decide({"own": own}, sequential)["own"]
    assert found["own"].verdict == "agrees" and found["own"].p_value < 0.05
    assert (found["0"].verdict, found["0"].reason) == untested.stopped
    assert found["control"].level == 0.95 and found["control"].verdict == "undecided"
    family = verdicts.decide(
        {"own": own} | {str(k): evidence_of(own.looks) for k in range(3)}, sequential
    )
    assert family["own"].p_value == pytest.approx(4 * found["own"].p_value)


def test_least_effects_are_decided_once_and_never_end_as_no_difference():
    """Differences alternate between 2 and 0, then are 2: as often above 1 as below, then above."""
    values = np.concatenate([np.tile([2.0, 0.0], 256), np.full(1_024, 2.0)])
    schedule = range(16, len(values) + 1, 16)
    looks = count_looks(values, np.zeros(len(values)), schedule, effect=1.0)
    found = decide({"a": looks}, least=1.0)["a"]
    assert found.verdict == "agrees" and 512 < found.seeds < 1_536
    assert decide({"a": looks[:18]}, least=1.0, plan=False)["a"].verdict == "undecided"
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


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("counts", [Counts(4, 72, 4), Counts(0, 2_000, 0), Counts(20, 800, 180)])
def test_ties_alone_are_not_no_difference(counts, sequential):
    """With 90 % ties, mu is within 0.1 of 1/2 even if the arm loses 90 % of the other pairs."""
    (found,) = decide({"same": [counts]}, sequential, plan=False).values()
    assert found.verdict == ("disagrees" if counts.losses > 100 else "undecided")
    (found,) = decide(
        {"same": [counts]}, sequential, plan=False, direction="at least as good"
    ).values()
    assert found.verdict == ("disagrees" if counts.losses > 100 else "undecided")
    untied = Counts(400, 1_000, 400)
    assert decide({"same": [untied]}, sequential)["same"].verdict == "no difference"


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
        assert found.verdict == verdict and found.p_value == anytime_test([even], 0.5 - margin)[0]
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


@pytest.mark.parametrize("sequential", [True, False])
def test_false_answers_to_non_inferiority_are_rare(sequential):
    """Every arm wins with probability 0.4, the margin: in at most 5 % of studies one agrees."""
    arms = 4
    rng, trials, wrong = np.random.default_rng(arms), 100, 0
    schedule = range(32, 129, 32) if sequential else [10]
    for _ in range(trials):
        signs = rng.choice([1.0, -1.0], p=[0.4, 0.6], size=(arms, 128))
        looks = {str(k): at(own, schedule) for k, own in enumerate(signs)}
        found = decide(looks, sequential, plan=False, direction="at least as good")
        wrong += any(each.verdict == "agrees" for each in found.values())
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
    p = anytime_test(at(signs, schedule), m)[0]
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
    assert seeds_needed(Counts(6, 0, 4)) == 464  # with NumPy 2.4 and 2.5
