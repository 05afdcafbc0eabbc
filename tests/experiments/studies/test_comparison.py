"""What arms showed: frames that were made by hand, and what has to come of them."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from experiments.runs import arms
from experiments.runs.arms import Question
from experiments.runs.run_config import defaults
from experiments.studies import comparison
from tests.refusals import assert_names

SEEDS = 12


def frame(first, gain, effective, updates=None):
    """Two log points after the warm-up; the returns of a seed are its number and the gain."""
    rows = [
        {"seed": first + seed, "step": step, "eval_return": seed + gain * (1 + 0.01 * seed),
         "replayed/effective_buffer": effective, "replay/sampler_updates": updates}
        for seed in range(SEEDS)
        for step in (2_000, 3_000)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def judged(frames, question=Question(), code=None, **replays):
    named = {label: replays.get(label, label) for label in frames if label != "control"}
    bases = {
        label: dataclasses.replace(defaults("gymnax/CartPole-v1", "dqn", replay), seeds=SEEDS)
        for label, replay in named.items()
    }
    made = arms.expand(question, bases, ())
    codes = dict.fromkeys(made, "abc") | (code or {})
    summaries = {
        label: {"versions": {"code": codes[label]}, "train_seconds": 1.0} for label in made
    }
    found = comparison.judge(question, made, frames, summaries, 475.0)
    saved = json.loads(json.dumps(found.to_json(question, made), allow_nan=False))
    return {row.label: row for row in found.rows}, saved


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


def test_verdicts_and_the_gate():
    rows, saved = judged(FRAMES)
    verdicts = {label: row.judgement.verdict for label, row in rows.items()}
    assert verdicts == {
        "per": "agrees", "rank": "disagrees", "lap": "not tested", "pal": "agrees",
        "ners": "not tested", "ero": "agrees", "control": "undecided",
    }  # fmt: skip
    assert_names(rows["lap"].judgement.reason, "effective buffer", "0.97", "0.95")
    assert_names(rows["ners"].judgement.reason, "29")
    assert (rows["per"].pairs.wins, rows["rank"].pairs.losses) == (SEEDS, SEEDS)
    assert rows["control"].pairs.ties == SEEDS  # the k-th seed beside the k-th
    assert rows["control"].pairs.p_holm is None
    assert saved["primary"]["name"] == "auc" and saved["baseline"] == "uniform"
    assert saved["arms"]["lap"]["verdict"] == "not tested"
    assert saved["arms"]["per"]["replays_per_transition"] == 64
    assert saved["values"]["uniform"] == list(range(SEEDS))


def test_the_gate_may_be_switched_off_for_a_reason_that_is_kept():
    question = Question(ungated="kappa 1 is what the paper says")
    rows, saved = judged({name: FRAMES[name] for name in ("uniform", "lap", "control")}, question)
    assert rows["lap"].judgement.verdict == "agrees"
    assert saved["question"]["ungated"] == saved["arms"]["lap"]["ungated"] == question.ungated


def test_results_of_other_code_are_not_comparable():
    frames = {name: FRAMES[name] for name in ("uniform", "per", "control")}
    rows, _ = judged(frames, code={"per": "def"})
    assert rows["per"].judgement.verdict == "not comparable"


def test_seeds_that_never_solve_are_worst_and_json_has_no_infinity():
    solved = FRAMES["per"].assign(eval_return=500.0)
    frames = {"uniform": FRAMES["uniform"], "per": solved, "control": FRAMES["control"]}
    rows, saved = judged(frames, Question(primary="steps_to_threshold"))
    assert rows["per"].pairs.wins == SEEDS and rows["per"].pairs.iqm is None
    assert saved["values"]["uniform"] == [None] * SEEDS
    assert saved["values"]["per"] == [2_000] * SEEDS
    assert rows["per"].judgement.verdict == "agrees"


def test_p_values_are_corrected_over_all_arms_that_were_tested():
    rows, _ = judged(FRAMES)
    tested = [label for label, row in rows.items() if row.judgement.verdict != "not tested"]
    claims = {label: rows[label].pairs.p_value for label in tested if label != "control"}
    assert set(claims) == {"per", "rank", "pal", "ero"}
    assert rows["per"].pairs.p_holm == pytest.approx(min(1, len(claims) * claims["per"]))
    assert rows["lap"].pairs.p_holm is None


def test_seeds_that_diverged_are_worse_than_any_other():
    lost = FRAMES["per"].assign(**{"agent/loss": np.where(FRAMES["per"]["seed"] < 2, np.nan, 1.0)})
    frames = {"uniform": FRAMES["uniform"], "per": lost, "control": FRAMES["control"]}
    rows, saved = judged(frames)
    assert (rows["per"].pairs.wins, rows["per"].pairs.losses) == (SEEDS - 2, 2)
    assert saved["values"]["per"][:2] == [None, None]


def test_a_few_seeds_are_a_pilot():
    few = {label: one[one["seed"] % SEEDS < 4] for label, one in FRAMES.items()}
    rows, _ = judged({name: few[name] for name in ("uniform", "per", "control")})
    assert rows["per"].judgement.verdict == "pilot"
    assert rows["per"].pairs.mean == pytest.approx(np.mean([1, 1.01, 1.02, 1.03]))
