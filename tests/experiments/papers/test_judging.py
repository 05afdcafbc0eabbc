"""Verdicts on claims, from tables made by hand."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.papers import judging
from experiments.papers.archive import Data
from experiments.papers.catalogue import EXPERIMENTS
from experiments.papers.entry import Claim, Computation, Entry, Exact, Experiment
from experiments.studies.options import Question
from tests.experiments.papers.made import data_of
from tests.refusals import assert_names, refused

SEEDS = 12
LABELS = ("uniform_every16", "per_every16")


def computed(claims, **more) -> Entry:
    source = Computation("made", lambda request: pd.DataFrame(), {}, **more)
    return Entry("x.fig1", "made by hand", source, claims=claims)


def table(**arms: float) -> Data:
    """Return updates until solved of each arm, with small differences between seeds."""
    noise = np.random.default_rng(0).uniform(0.95, 1.05, SEEDS)
    rows = [
        {"arm": arm, "seed": seed, "n": 4, "value": value * noise[seed]}
        for arm, value in arms.items()
        for seed in range(SEEDS)
    ]
    return Data(pd.DataFrame(rows), made={"versions": {"code": "abc"}})


FASTER = {"higher_is_better": False, "ratios": True}


@pytest.mark.parametrize(
    ("claim", "of_source", "per", "expected"),
    [
        ({}, {}, 3.0, "agrees"),
        ({"direction": "worse"}, {}, 3.0, "disagrees"),
        ({}, {"higher_is_better": False}, 3.0, "disagrees"),
        ({"least": 0.9}, FASTER, 1.0, "agrees"),  # twice as fast is 1 on the log2 scale of ratios
        ({"least": 1.1}, FASTER, 1.0, "disagrees"),
        # Noninferiority margins.
        ({"direction": "at least as good"}, {}, 1.8, "disagrees"),
        ({"direction": "at least as good", "least": 0.5}, {}, 1.8, "agrees"),
        ({"direction": "at least as good", "least": 0.1}, {}, 1.8, "disagrees"),
    ],
)
def test_verdicts_follow_from_directions_scales_and_margins(claim, of_source, per, expected):
    entry = computed((Claim("a claim", "per", "uniform", **claim),), **of_source)
    (found,) = judging.judge_entry(entry, "small", table(per=per, uniform=2.0))
    assert found.verdict == expected
    assert found.counts.wins in (0, SEEDS)


def test_p_values_are_corrected_over_the_claims_of_an_entry():
    claims = tuple(Claim(str(number), "per", "uniform") for number in range(3))
    one = judging.judge_entry(computed(claims[:1]), "small", table(per=2.0, uniform=1.0))[0]
    three = judging.judge_entry(computed(claims), "small", table(per=2.0, uniform=1.0))
    assert [each.p_value for each in three] == [3 * one.p_value] * 3
    assert one.raw == one.p_value == 2 / 2**SEEDS


def test_tables_with_looks_are_judged_sequentially_on_shared_seeds():
    claims = (Claim("first", "per", "uniform"), Claim("second", "per", "rank"))
    whole, few = table(per=3.0, uniform=2.0, rank=3.0), table(per=3.0, rank=2.0)
    frame = whole.frame[(whole.frame["arm"] != "uniform") | (whole.frame["seed"] < 10)]
    entry = computed(claims, looks=10)
    first, second = judging.judge_entry(entry, "small", dataclasses.replace(whole, frame=frame))
    assert (first.verdict, first.counts) == ("agrees", (10, 0, 0))
    assert (second.verdict, second.counts) == ("undecided", (0, SEEDS, 0))
    absent, second = judging.judge_entry(entry, "small", few)
    assert (absent.verdict, second.verdict) == ("not tested", "agrees")
    few = dataclasses.replace(few, frame=few.frame[few.frame["seed"] < 4])  # before the first look
    assert judging.judge_entry(entry, "small", few)[1].verdict == "pilot"
    with refused("per and uniform"):  # a single test needs the same seeds
        judging.judge_entry(computed(claims), "small", dataclasses.replace(whole, frame=frame))


def test_arms_that_never_solve_the_task_rank_worst():
    data = table(per=1.0, uniform=2.0)
    data.frame.loc[data.frame["arm"] == "uniform", "value"] = np.inf
    claim = Claim("sooner", "per", "uniform")
    (found,) = judging.judge_entry(computed((claim,), higher_is_better=False), "small", data)
    assert found.verdict == "agrees"
    assert_names(found.reason, "12", "uniform")


def test_claims_about_missing_arms_are_not_tested():
    claims = (Claim("a", "rank", "uniform"), Claim("b", "per", "uniform", where={"n": 9}),
              Exact("c", "theorem"))  # fmt: skip
    data = table(per=1.0, uniform=2.0)
    data.frame["claim"] = None
    found = judging.judge_entry(computed(claims), "small", data)
    assert [each.verdict for each in found] == ["not tested"] * 3
    assert_names(found[0].reason, "small", "rank")
    assert_names(found[1].reason, "small", "per", "n", "9")
    assert_names(found[2].reason, "theorem")


def test_exact_claims_are_judged_by_tolerance():
    rows = pd.DataFrame(
        {"claim": ["good", "good", "bad", "lost"], "found": [1.0, 2.0, 1.2, np.nan],
         "expected": [1.0, 2.01, 1.0, 1.0], "tolerance": [0.1] * 4}
    )  # fmt: skip
    claims = tuple(Exact(name, name) for name in ("good", "bad", "lost"))
    found = judging.judge_entry(
        computed(claims), "small", Data(rows, made={"versions": {"code": "a"}})
    )
    assert [each.verdict for each in found] == ["agrees", "disagrees", "disagrees"]
    assert_names(found[0].reason, "2", "2.01")


def frame_of(solved: int, buffer: float, seeds: int = 20) -> pd.DataFrame:
    """Return metrics of runs that solve the walk after about `solved` evaluations."""
    return pd.DataFrame([
        {"seed": seed, "step": 1_000 * step, "eval_return": float(step >= solved + seed % 3),
         "replayed/effective_buffer": buffer}
        for seed in range(seeds) for step in range(1, 41)
    ])  # fmt: skip


def source_of(*envs: str, **more) -> Experiment:
    """Return the walk with 20 seeds."""
    small = dataclasses.replace(
        EXPERIMENTS["walk_dqn"].small, seeds=20, most_seeds=0, envs=envs or ("walk/10",), **more
    )
    return dataclasses.replace(EXPERIMENTS["walk_dqn"], small=small)


def walked(buffer: float = 0.3, baseline: str = LABELS[0], code: str = "abc") -> Data:
    """Return a table of the walk in which PER solves the task sooner with every seed."""
    columns = {"replayed/abs_td": buffer}
    frames = {
        ("walk/10", baseline): frame_of(30, 1.0).assign(**{"replayed/abs_td": 1.0}),
        ("walk/10", LABELS[1]): frame_of(10, buffer).assign(**columns),
    }
    source = dataclasses.replace(source_of(), columns=tuple(columns))
    return data_of(source, frames, codes={("walk/10", baseline): code})


SOONER = Claim("PER solves it sooner", LABELS[1], LABELS[0])
LESS = dataclasses.replace(SOONER, direction="worse")
RARER = dataclasses.replace(SOONER, baseline="uniform_every4")


@pytest.mark.parametrize(
    ("claim", "data", "expected", "parts"),
    [
        (SOONER, {}, "agrees", ()),
        (SOONER, {"buffer": 0.99}, "not tested", ("0.99",)),
        # A claim about the effective buffer itself is tested without the gate.
        (dataclasses.replace(LESS, primary="mean:replayed/effective_buffer"), {"buffer": 0.99},
         "agrees", ()),
        (dataclasses.replace(LESS, primary="mean:replayed/abs_td"), {"buffer": 0.99},
         "not tested", ("0.99",)),
        (SOONER, {"code": "def"}, "not comparable", ("code", "abc", "def")),
        (RARER, {"baseline": RARER.baseline}, "not comparable", ("learn_every",)),
        (dataclasses.replace(RARER, across=True), {"baseline": RARER.baseline}, "agrees", ()),
    ],
)  # fmt: skip
def test_verdicts_on_the_walk_follow_from_its_metrics(claim, data, expected, parts):
    source = dataclasses.replace(source_of(), columns=("replayed/abs_td",))
    entry = Entry("all.walk", "walk", source, claims=(claim,))
    (found,) = judging.judge_entry(entry, "small", walked(**data))
    assert found.verdict == expected
    assert_names(found.reason, *parts)


def test_claims_of_another_question_than_that_of_the_runs_say_so():
    source, data = source_of(), walked()
    source = dataclasses.replace(source, columns=("replayed/abs_td",))
    entry = Entry("all.walk", "walk", source, claims=(SOONER, LESS))
    asked = [dataclasses.asdict(dataclasses.replace(SOONER, says="in other words"))]
    data.store.facts["study"]["claims"] = {"all.walk": asked}
    alone = dataclasses.replace(entry, claims=(SOONER,))
    assert judging.OTHER_QUESTION not in judging.judge_entry(alone, "small", data)[0].reason
    first, second = judging.judge_entry(entry, "small", data)  # a claim more corrects p-values more
    assert (first.verdict, second.verdict) == ("agrees", "disagrees")
    assert all(judging.OTHER_QUESTION in own.reason for own in (first, second))
    fewer = dataclasses.replace(entry, claims=())
    assert judging.judge_entry(fewer, "small", data) == []
    data.store.facts["study"]["question"]["primary"] = "auc"
    assert all(
        judging.OTHER_QUESTION in own.reason for own in judging.judge_entry(entry, "small", data)
    )


def test_claims_over_tasks_are_pooled():
    two = source_of("walk/10", "walk/12")
    entry = Entry("x.fig2", "two tasks", two, claims=(SOONER,))
    data = data_of(two, {
        (env, label): frame_of(30 if label == LABELS[0] else 10, 1.0 if label == LABELS[0] else 0.3)
        for env in ("walk/10", "walk/12")
        for label in LABELS
    })  # fmt: skip
    (found,) = judging.judge_entry(entry, "small", data)
    assert (found.verdict, found.counts) == ("agrees", (40, 0, 0))
    assert found.seeds == 20


def two_tasks(scale: float = 1.0, code: str = "abc") -> tuple[Experiment, Data]:
    """Return two tasks; returns and code of the second may differ."""
    two = dataclasses.replace(
        source_of("walk/10", "walk/12", every=(16,)), question=Question(primary="final")
    )
    rng, frames, codes = np.random.default_rng(1), {}, {}
    for env, unit in (("walk/10", 1.0), ("walk/12", scale)):
        gain = {LABELS[0]: 0.0, LABELS[1]: 1.0 if env == "walk/10" else -0.1}
        for label in LABELS:
            frames[env, label] = pd.DataFrame([
                {"seed": seed, "step": 40_008, "eval_return": unit * (10.0 + gain[label] + noise),
                 "replayed/effective_buffer": 0.3}
                for seed, noise in enumerate(rng.normal(0, 0.3, 20))
            ])  # fmt: skip
            codes[env, label] = code if (env, label) == ("walk/12", LABELS[0]) else "abc"
    return two, data_of(two, frames, codes=codes)


def test_verdicts_over_tasks_are_invariant_to_units_of_tasks():
    claim = Claim("higher", *reversed(LABELS))
    found = []
    for scale in (1.0, 1_000.0):
        two, data = two_tasks(scale)
        entry = Entry("x.fig3", "two tasks", two, claims=(claim,))
        found += judging.judge_entry(entry, "small", data)
    assert found[0] == found[1]
    assert found[0].reason == found[1].reason


def test_claims_are_not_comparable_if_one_task_is_not():
    two, data = two_tasks(code="def")
    entry = Entry("x.fig3", "two", two, claims=(Claim("higher", *reversed(LABELS)),))
    (found,) = judging.judge_entry(entry, "small", data)
    assert found.verdict == "not comparable"
    assert_names(found.reason, "code", "abc", "def")


def test_least_effect_applies_with_an_unsolved_seed():
    claim = Claim("nearly twice as fast", "per", "uniform", least=0.9)
    entry = computed((claim,), higher_is_better=False, ratios=True)
    data = table(per=100.0, uniform=110.0)
    assert judging.judge_entry(entry, "small", data)[0].verdict == "disagrees"
    last = (data.frame["arm"] == "uniform") & (data.frame["seed"] == 3)
    data.frame.loc[last, "value"] = np.inf
    (found,) = judging.judge_entry(entry, "small", data)
    assert found.verdict == "disagrees"
    assert_names(found.reason, "0.9")


def test_diverged_seeds_rank_worst_in_means():
    """The mean of the column would be better by 0.5 on every seed."""
    lost = frame_of(10, 1.0)
    lost["agent/loss"] = np.where(lost["seed"] == 4, np.nan, 1.0)
    data = data_of(source_of(), {
        ("walk/10", LABELS[0]): frame_of(30, 0.5), ("walk/10", LABELS[1]): lost
    })  # fmt: skip
    claim = dataclasses.replace(SOONER, primary="mean:replayed/effective_buffer")
    entry = Entry("all.walk", "walk", source_of(), claims=(claim,))
    (found,) = judging.judge_entry(entry, "small", data)
    assert (found.verdict, found.counts) == ("agrees", (19, 0, 1))
    assert_names(found.reason, "1 of 20", LABELS[1])


def test_one_seed_is_a_pilot_and_duplicate_seeds_are_refused():
    claim = Claim("higher", "per", "uniform")
    data = table(per=2.0, uniform=1.0)
    one = Data(data.frame[data.frame["seed"] == 0], made=data.made)
    assert judging.judge_entry(computed((claim,)), "small", one)[0].verdict == "pilot"
    twice = Data(pd.concat([data.frame, data.frame.assign(n=5)]), made=data.made)
    with refused("higher", "x.fig1", "seed"):
        judging.judge_entry(computed((claim,)), "small", twice)
