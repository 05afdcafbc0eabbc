"""The gate, and the facts about runs that it needs."""

import math

import numpy as np
import pandas as pd
import pytest

from experiments.statistics.claims import Runs, mean_after, progress_of
from experiments.statistics.gate import gate, incomparable, why_untested
from tests.refusals import assert_names

SEEDS = range(10)
NAN = math.nan


def arm(label="per", effective_buffer=None, updates=None, progress=None, **facts) -> Runs:
    """Return runs with facts; `progress` is the return of all seeds, of which 1 is good."""
    metrics = pd.DataFrame({"seed": SEEDS, "step": 0, "eval_return": 0.0})
    metrics = pd.concat([metrics, metrics.assign(step=1, eval_return=progress or 0.0)])
    if effective_buffer is not None:
        metrics["replayed/effective_buffer"] = effective_buffer
    if updates is not None:
        metrics["replay/sampler_updates"] = updates
    facts = {"env": "walk/10", "code": "abc", "settings": {"agent": "dqn"}, **facts}
    good = None if progress is None else 1.0
    return Runs(label, values=pd.Series(1.0, SEEDS), metrics=metrics, good_return=good, **facts)


PER = arm(prioritises=True, effective_buffer=0.6)
UNIFORM = arm("uniform", effective_buffer=1.0)


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        ({}, None),  # uniform, PAL
        ({"effective_buffer": 1.0}, None),
        ({"prioritises": True, "effective_buffer": 0.95}, None),
        ({"prioritises": True, "effective_buffer": 0.98}, ("effective buffer", "0.98", "0.95")),
        ({"prioritises": True}, ("effective buffer",)),
        ({"prioritises": True, "effective_buffer": NAN}, ("effective buffer",)),
        ({"learned": True, "updates": 500.0}, None),
        ({"learned": True, "updates": 29.0}, ("29", "500")),
        ({"learned": True}, ("network",)),
        (
            {"prioritises": True, "effective_buffer": 0.5, "learned": True, "updates": 499},
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


def test_gate_follows_an_order_of_precedence():
    """Not comparable, then not tested because of the sampler, then because nobody learned."""
    flat = {"prioritises": True, "effective_buffer": 0.99, "progress": 0.0}
    assert gate(arm(env="walk/12", **flat), UNIFORM)[0] == "not comparable"
    verdict, reason = gate(PER, arm("lap", **flat))
    assert verdict == "not tested"
    assert_names(reason, "baseline", "lap", "0.99")
    verdict, reason = gate(arm(progress=0.02), arm("uniform", progress=0.07))
    assert verdict == "not tested"
    assert_names(reason, "walk/10", "0.07")
    assert gate(arm(**flat), UNIFORM, ungated="alpha is annealed to 0") is None


@pytest.mark.parametrize(
    ("own", "base", "tested"),
    [
        (0.0, 0.1, True),
        (0.1, 0.0, True),
        (0.09, 0.09, False),
        (None, None, True),
        (None, 0.0, False),
    ],
)
def test_one_of_two_agents_has_to_learn(own, base, tested):
    found = gate(arm(progress=own), arm("uniform", progress=base))
    assert (found is None) == tested


def returns(*curves, steps=(100, 200, 300)):
    return pd.DataFrame([
        {"seed": seed, "step": step, "eval_return": value}
        for seed, curve in enumerate(curves)
        for step, value in zip(steps, curve, strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("curves", "good", "expected"),
    [
        ([[0, 0, 0]] * 3, 1.0, 0.0),  # nobody solves it
        ([[0, 0, 1], [0, 0, 0], [0, 1, 0]], 1.0, 1.0),  # most seeds do
        ([[0, 0, 1], [0, 0, 0]], 1.0, 1.0),  # half of them do
        ([[0, 0, 1], [0, 0, 0], [0, 0, 0]], 1.0, 0.0),
        ([[0.4, 1.1, 0.9]] * 3, 10.0, 0.7 / 9.6),  # best evaluation of the median
        ([[-1400, -1300, NAN]] * 2, -200.0, 100 / 1200),
        ([[NAN] * 3] * 2, 1.0, 0.0),  # all seeds diverged
        ([[5, 4, 3]] * 2, 10.0, 0.0),
        ([[0, 0, 0]] * 3, None, None),  # no return is known to be good
    ],
)
def test_progress_is_the_share_of_the_way_to_a_good_return(curves, good, expected):
    assert progress_of(returns(*curves), good) == pytest.approx(expected)


def test_noise_is_no_progress():
    """Ten seeds whose returns have a standard deviation of a fifth of a good return."""
    rng, learned = np.random.default_rng(0), 0
    for _ in range(40):
        noise = returns(*rng.normal(0.0, 20.0, (10, 100)), steps=range(100, 10_100, 100))
        learned += progress_of(noise, 100.0) >= 0.1
    assert learned / 40 < 0.4


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
