import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest

from experiments.statistics.paired import compare_arms, compare_pairs
from experiments.statistics.verdicts import (
    NAMES,
    Facts,
    decide,
    incomparable,
    judge,
    mean_after,
    why_untested,
)
from tests.refusals import assert_names

SEEDS = tuple(range(10))
NAN = math.nan


def arm(label="per", seeds=SEEDS, **facts) -> Facts:
    facts = {"env": "walk/10", "code": "abc", "settings": {"agent": "dqn"}, **facts}
    return Facts(label=label, seeds=tuple(seeds), **facts)


PER = arm(prioritises=True, effective_buffer=0.6)
UNIFORM = arm("uniform", effective_buffer=1.0)
NOISE = np.random.default_rng(0).normal(size=10)


def pairs_of(shift, seeds=10):
    return compare_pairs(NOISE[:seeds] + shift, np.zeros(seeds))


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        ({}, None),  # uniform, PAL
        ({"effective_buffer": 1.0}, None),
        ({"prioritises": True, "effective_buffer": 0.95}, None),
        ({"prioritises": True, "effective_buffer": 0.98}, ("effective buffer", "0.98", "0.95")),
        ({"prioritises": True}, ("effective buffer",)),
        ({"prioritises": True, "effective_buffer": NAN}, ("effective buffer",)),
        ({"learned": True, "sampler_updates": 500.0}, None),
        ({"learned": True, "sampler_updates": 29.0}, ("29", "500")),
        ({"learned": True}, ("network",)),
        (
            {"prioritises": True, "effective_buffer": 0.5, "learned": True, "sampler_updates": 499},
            ("499", "500"),
        ),
    ],
)
def test_gate_stops_arms_that_draw_almost_uniformly(facts, parts):
    why = why_untested(arm(**facts))
    assert (why is None) == (parts is None)
    if parts:
        assert why.startswith("not tested")  # reports remove this prefix
        assert_names(why, *parts)


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        ({"label": "lap", "prioritises": True, "train_seconds": 3.0}, None),
        ({"env": "walk/12"}, ("walk/12", "walk/10")),
        ({"code": "def"}, ("code", "def", "abc")),
        ({"seeds": SEEDS[:3]}, ("seeds", "3", "10")),
        ({"settings": {"agent": "sac"}}, ("agent", "sac", "dqn")),
        ({"settings": {"agent": "dqn", "learn_every": 4}}, ("learn_every", "4")),
    ],
)
def test_arms_that_differ_beyond_their_method_are_not_comparable(facts, parts):
    why = incomparable(arm(**facts), UNIFORM)
    assert (why is None) == (parts is None)
    if parts:
        assert why.startswith("not comparable")  # reports remove this prefix
        assert_names(why, *parts)


@pytest.mark.parametrize(
    ("interval", "better", "at_least", "worse"),
    [
        ((0.1, 2.0), "agrees", "agrees", "disagrees"),
        ((-2.0, -0.1), "disagrees", "disagrees", "agrees"),
        ((-1.0, 2.0), "undecided", "undecided", "undecided"),
        ((0.0, 2.0), "undecided", "agrees", "undecided"),  # contains 0 but no negative values
        ((-2.0, 0.0), "undecided", "undecided", "undecided"),
        ((0.0, 0.0), "undecided", "agrees", "undecided"),
    ],
)
def test_verdicts_follow_from_the_interval(interval, better, at_least, worse):
    assert decide("better", interval, 0.0)[0] == better
    assert decide("at least as good", interval, 0.0)[0] == at_least
    assert decide("worse", interval, 0.0)[0] == worse
    moved = tuple(end + 0.5 for end in interval)  # a probability of improvement
    assert decide("better", moved, 0.5)[0] == better


@pytest.mark.parametrize("claim", ["better", "worse", "at least as good"])
def test_differences_require_a_small_p_value(claim):
    verdict, reason = decide(claim, (-2.0, -1.0), 0.0, p_value=0.05)
    assert verdict == "undecided"
    assert_names(reason, "[-2, -1]", "0.05")
    assert decide(claim, (-2.0, -1.0), 0.0, p_value=0.049)[0] != "undecided"
    good = decide(claim, (1.0, 2.0), 0.0, p_value=0.9)[0]
    assert good == ("agrees" if claim == "at least as good" else "undecided")


def test_p_values_must_agree_with_the_sign_of_the_iqm():
    # Most seeds gain 1, a few lose 40: the IQM is above 0, but the p-value tests a mean below 0.
    values = np.concatenate([np.ones(44), np.full(6, -40.0)]) + np.tile(NOISE, 5) / 10
    pairs = compare_pairs(values, np.zeros(50))
    assert pairs.iqm_interval[0] > 0 and pairs.mean_interval[1] < 0 and pairs.p_value < 0.05
    fifty, base = arm(seeds=range(50)), arm("uniform", range(50))
    for claim in ("better", "worse"):
        judgement = judge(fifty, base, pairs, claim)
        assert judgement.verdict == "undecided"
        assert_names(judgement.reason, "mean", f"{pairs.mean:.4g}")
    assert judge(fifty, base, pairs, "better", "improvement").verdict == "undecided"


@pytest.mark.parametrize(
    ("shift", "claim", "verdict"),
    [
        (2.0, "better", "agrees"),
        (0.0, "better", "undecided"),
        (-2.0, "worse", "agrees"),
        (-2.0, "at least as good", "disagrees"),
    ],
)
@pytest.mark.parametrize("quantity", ["iqm", "improvement"])
def test_verdicts_of_clear_cases(shift, claim, verdict, quantity):
    pairs = pairs_of(shift)
    judgement = judge(PER, UNIFORM, pairs, claim, quantity)
    assert judgement.verdict == verdict
    assert judgement.quantity == quantity
    assert judgement.interval == getattr(pairs, f"{quantity}_interval")
    assert judgement.boundary == (0.5 if quantity == "improvement" else 0.0)
    assert judgement.p_value == pairs.p_value
    json.dumps(dataclasses.asdict(judgement), allow_nan=False)
    assert f"[{judgement.interval[0]:.4g}, {judgement.interval[1]:.4g}]" in judgement.reason


def test_p_values_are_corrected_over_all_arms():
    # Nine wins and one loss of 1: p = 22 / 1024, which is above 0.05 when corrected for three arms.
    values = {"uniform": np.zeros(10), "per": np.array([1.0] * 9 + [-1.0])}
    alone = compare_arms(values, "uniform")["per"]
    assert judge(PER, UNIFORM, alone).verdict == "agrees"
    values |= {"lap": NOISE, "rank": -NOISE}
    of_three = compare_arms(values, "uniform")["per"]
    judgement = judge(PER, UNIFORM, of_three)
    assert judgement.verdict == "undecided"
    assert judgement.p_value == pytest.approx(3 * 22 / 1024)
    assert_names(judgement.reason, "0.064", "0.05")


def test_unsolved_seeds_are_judged_by_probability_of_improvement():
    solved = compare_pairs(np.arange(1.0, 11.0), np.full(10, np.inf), higher_is_better=False)
    judgement = judge(PER, UNIFORM, solved)
    assert (judgement.verdict, judgement.quantity) == ("agrees", "improvement")
    assert_names(judgement.reason, NAMES["improvement"], "[1, 1]", "0.5")


def test_verdicts_follow_an_order_of_precedence():
    """Not comparable, then not tested, then pilot, then verdicts from numbers."""
    flat, few = {"prioritises": True, "effective_buffer": 0.99}, pairs_of(5.0, seeds=9)
    nine = arm("uniform", SEEDS[:9])
    judgement = judge(arm(env="walk/12", **flat), nine, few)
    assert judgement.verdict == "not comparable"
    baseline = arm("lap", prioritises=True, effective_buffer=0.99)
    judgement = judge(PER, baseline, pairs_of(2.0))
    assert judgement.verdict == "not tested"
    assert_names(judgement.reason, "baseline", "lap", "0.99")
    judgement = judge(arm(seeds=SEEDS[:9], **flat), nine, few)
    assert judgement.verdict == "not tested"
    assert_names(judgement.reason, "0.99", "0.95")
    judgement = judge(arm(seeds=SEEDS[:9]), nine, few)
    assert judgement.verdict == "pilot"
    assert_names(judgement.reason, "seeds", "9", "10")
    assert judgement.interval is judgement.quantity is judgement.p_value is None


def test_reason_for_a_gate_that_is_off_is_recorded():
    flat = arm(prioritises=True, effective_buffer=0.99)
    judgement = judge(flat, UNIFORM, pairs_of(2.0), ungated="alpha is annealed to 0")
    assert (judgement.verdict, judgement.ungated) == ("agrees", "alpha is annealed to 0")


def test_metrics_after_the_warm_up_are_averaged_by_seed():
    frame = pd.DataFrame(
        {
            "seed": [0, 1, 0, 1, 0, 1],
            "step": [100, 100, 200, 200, 300, 300],
            "replayed/effective_buffer": [1.0, 1.0, 0.5, NAN, 0.7, 0.2],
        }
    )
    assert mean_after(frame, "replayed/effective_buffer", 100) == pytest.approx((0.6 + 0.2) / 2)
    assert mean_after(frame, "replayed/effective_buffer", 300) is None
    assert mean_after(frame, "sampler/updates", 0) is None
