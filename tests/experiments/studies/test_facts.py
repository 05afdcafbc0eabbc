"""Facts of arms, and the verdicts of a fixed design on metrics made by hand."""

import dataclasses
import json

import pandas as pd
import pytest

from experiments.runs.run_config import defaults
from experiments.studies import facts, judge
from experiments.studies.definition import Study
from experiments.studies.options import Question
from tests.refusals import assert_names

SEEDS = 12


def configs(*names):
    return {name: defaults("gymnax/CartPole-v1", "dqn", name) for name in names}


def frame(first, gain, effective, updates=None):
    """Return two log points after the warm-up, with returns of seed number plus gain."""
    rows = [
        {"seed": first + seed, "step": step,
         "eval_return": 500 + seed + gain * (1 + 0.01 * seed),
         "replayed/effective_buffer": effective, "replay/sampler_updates": updates}
        for seed in range(SEEDS)
        for step in (2_000, 3_000)
    ]  # fmt: skip
    return pd.DataFrame(rows)


FRAMES = {
    "uniform": frame(0, 0.0, 1.0),
    "per": frame(0, 1.0, 0.5),
    "rank": frame(0, -1.0, 0.5),
    "lap": frame(0, 1.0, 0.97),
    "pal": frame(0, 1.0, 1.0),
    "ners": frame(0, 1.0, 0.5, 29.0),
    "ero": frame(0, 1.0, 0.5, 600.0),
    "control": frame(SEEDS, 0.0, 1.0),
}


def judged(frames, question=Question()):
    study = Study.make(
        "gymnax/CartPole-v1", "dqn", [label for label in frames if label != "control"],
        seeds=SEEDS, question=question,
    )  # fmt: skip
    ids = {point.label: point.id for point in study.points()}
    made = {own: {"code": "abc", "train_seconds": 1.0} for own in ids.values()}
    found = judge.judge(study, {ids[label]: own for label, own in frames.items()}, made)
    saved = json.loads(json.dumps(found.to_json(study), allow_nan=False))
    return {row.label: row for row in found.rows}, saved


def test_baseline_is_the_first_arm_that_draws_uniformly():
    assert facts.baseline_of(configs("per", "pal", "uniform")) == "uniform"
    assert facts.baseline_of(configs("per", "pal")) == "pal"
    assert facts.baseline_of(configs("per", "rank")) == "per"
    study = Study.make("walk/4", "dqn", ["uniform", "per"], question=Question(baseline="per"))
    assert study.baseline == "per"
    learned = [facts.learns_from(own) is not None for own in configs("per", "ero", "ners").values()]
    assert learned == [False, True, True]


def test_replay_ratio_counts_replays_per_transition():
    (config,) = configs("per").values()
    assert facts.replays_per_transition(config) == 64
    rare = dataclasses.replace(config, loop=dataclasses.replace(config.loop, learn_every=16))
    assert facts.replays_per_transition(rare) == 4
    loop = dataclasses.replace(config.loop, offline=True, warmup=5_000, steps=55_000)
    offline = dataclasses.replace(config, loop=loop)
    assert facts.replays_per_transition(offline) == 64 * 50_000 / 5_000


def test_remarks_name_methods_with_too_few_evaluations_to_learn_from():
    question = Question(control=False)
    study = Study.make("gymnax/CartPole-v1", "dqn", ["uniform", "ners"], question=question)
    (remark,) = study.check()
    assert_names(remark, "ners", "48", "500")
    often = Study.make(
        "gymnax/CartPole-v1", "dqn", ["uniform", "ners"], loop={"observe_every": 50},
        question=question,
    )  # fmt: skip
    assert often.check() == []


def test_verdicts_follow_from_metrics_and_the_gate():
    rows, saved = judged(FRAMES)
    verdicts = {label: row.verdict for label, row in rows.items()}
    assert verdicts == {
        "per": "better", "rank": "worse", "lap": "not tested", "pal": "better",
        "ners": "not tested", "ero": "better", "control": "undecided",
    }  # fmt: skip
    assert_names(rows["lap"].reason, "effective buffer", "0.97", "0.95")
    assert_names(rows["ners"].reason, "29")
    assert rows["per"].counts == (SEEDS, 0, 0)
    assert rows["rank"].counts == (0, 0, SEEDS)
    assert rows["control"].counts == (0, SEEDS, 0)  # seeds are paired by position
    assert saved["primary"]["name"] == "auc" and saved["baseline"] == "uniform"
    assert saved["arms"]["per"]["replays_per_transition"] == 64
    assert saved["values"]["uniform"] == list(range(500, 500 + SEEDS))
    own = rows["per"]  # one of four tested arms
    assert (own.raw, own.p_value) == pytest.approx((2 / 2**SEEDS, 4 * 2 / 2**SEEDS))
    assert (own.level, rows["control"].level) == (1 - 0.05 / 4, 0.95)


def test_reason_for_a_disabled_gate_is_saved():
    question = Question(ungated="kappa 1 is what the paper says")
    rows, saved = judged({name: FRAMES[name] for name in ("uniform", "lap", "control")}, question)
    assert rows["lap"].verdict == "better"
    assert saved["question"]["ungated"] == saved["arms"]["lap"]["ungated"] == question.ungated


def test_unsolved_seeds_rank_worst_and_are_null_in_json():
    solved = FRAMES["per"].assign(eval_return=500.0)
    unsolved = {name: FRAMES[name].assign(eval_return=400.0) for name in ("uniform", "control")}
    frames = {"uniform": unsolved["uniform"], "per": solved, "control": unsolved["control"]}
    rows, saved = judged(frames, Question(primary="steps_to_threshold"))
    assert rows["per"].counts.wins == SEEDS and rows["per"].pairs["iqm"] is None
    assert saved["values"]["uniform"] == [None] * SEEDS
    assert saved["values"]["per"] == [2_000] * SEEDS
    assert rows["per"].verdict == "better"


@pytest.mark.parametrize(("name", "tested"), [("lap", False), ("la3p", True), ("pal", True)])
def test_gate_ignores_methods_with_roles_within_a_batch(name, tested):
    config = defaults("gymnax/Pendulum-v1", "td3", name)
    assert facts.prioritises(config) is not tested
