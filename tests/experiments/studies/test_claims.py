"""Claims of a study: directions, effects, several tasks, families and sequential looks."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from experiments.figures import judged as judged_figures
from experiments.statistics.claims import Claim, Runs, contrast
from experiments.statistics.counts import Counts, count_pairs
from experiments.studies import definition, judge, results, runner, study_page
from experiments.studies.definition import UNTIL_DECIDED, Arm, Study
from experiments.studies.options import Question, StudyOptions
from experiments.study import main
from tests.experiments.studies.test_judge import LOOP, frames_of
from tests.refusals import assert_names, refused

SEEDS = 64
BETTER = Claim("PER is better", "per", "uniform")


def with_claims(*claims, envs="walk/4", **families) -> Study:
    own = Study.make(
        envs, "dqn", ["uniform", "per", "lap"], seeds=UNTIL_DECIDED, loop=LOOP,
        question=Question(primary="final", control=False, most_seeds=SEEDS),
    )  # fmt: skip
    return dataclasses.replace(own, claims={"one": claims} if claims else families)


def made_of(own):
    return {point.id: {"code": "x", "train_seconds": 1.0} for point in own.points()}


def judged(own, values, family="one"):
    frames = frames_of(own, values)
    return judge.family(own, own.claims[family], frames, made_of(own), plan=False)


@pytest.mark.parametrize(
    ("claim", "gain", "expected"),
    [
        (BETTER, 1.0, "agrees"),
        (BETTER, -1.0, "disagrees"),
        (dataclasses.replace(BETTER, direction="worse"), -1.0, "agrees"),
        (dataclasses.replace(BETTER, least=0.5), 1.0, "agrees"),
        (dataclasses.replace(BETTER, least=2.0), 1.0, "disagrees"),
        (dataclasses.replace(BETTER, direction="at least as good"), -1.0, "disagrees"),
        # Worse by 1 on every seed, within a margin of 2.
        (dataclasses.replace(BETTER, direction="at least as good", least=2.0), -1.0, "agrees"),
        (dataclasses.replace(BETTER, direction="at least as good", least=0.5), -1.0, "disagrees"),
        (dataclasses.replace(BETTER, direction="worse", least=0.5), -1.0, "agrees"),
        (dataclasses.replace(BETTER, direction="worse", least=2.0), -1.0, "disagrees"),
        (BETTER, 0.0, "not tested"),  # all seeds tie
    ],
)
def test_verdicts_follow_from_directions_and_effects(claim, gain, expected):
    values = {"uniform": np.zeros(SEEDS), "per": np.full(SEEDS, gain), "lap": np.zeros(SEEDS)}
    (found,) = judged(with_claims(claim), values)
    assert found.verdict == expected and found.seeds == 16


def test_claims_over_tasks_count_a_pair_of_every_seed_on_every_task():
    """Slightly better on two tasks and much worse on the third: two wins and a loss per seed."""
    own = with_claims(BETTER, envs=("walk/4", "walk/5", "walk/6"))
    gains = {"walk/4": 0.1, "walk/5": 0.1, "walk/6": -50.0}
    frames = frames_of(own, dict.fromkeys(("uniform", "per", "lap"), np.zeros(SEEDS)))
    for point in own.points():
        if point.label == "per":
            frames[point.id]["eval_return"] += gains[point.env]
    (found,) = judge.family(own, own.claims["one"], frames, made_of(own), plan=False)
    assert found.verdict == "agrees" and found.seeds in (32, 48, 64)
    assert found.looks[0] == Counts(32, 0, 16)
    assert found.counts == found.looks[found.seeds // 16 - 1]


def test_tasks_on_which_nobody_learned_are_left_out():
    own = with_claims(BETTER, envs=("walk/4", "walk/5", "walk/6"))
    frames = frames_of(own, dict.fromkeys(("uniform", "per", "lap"), np.zeros(SEEDS)))
    for point in own.points():
        frames[point.id]["eval_return"] += {"walk/4": 1.0, "walk/5": -1.0, "walk/6": -99.0}[
            point.env
        ] * (point.label == "per")
        frames[point.id]["eval_return"] -= 10.0 * (point.env != "walk/4")  # not learned
    (found,) = judge.family(own, own.claims["one"], frames, made_of(own), plan=False)
    assert (found.verdict, found.looks[0]) == ("agrees", Counts(16, 0, 0))
    assert_names(found.reason, "walk/5", "walk/6")


CONTRAST = Claim("PER gains more than LAP", "per", "uniform", beside=("lap", "uniform"))


@pytest.mark.parametrize(
    ("per", "lap", "least", "expected"),
    [
        (2.0, 1.0, 0.0, "agrees"),
        (1.0, 2.0, 0.0, "disagrees"),
        (-1.0, -2.0, 0.0, "agrees"),  # both are worse than uniform, PER by less
        (2.0, 1.0, 1.5, "disagrees"),  # more by 1 only
    ],
)
def test_contrasts_compare_gains_seed_by_seed(per, lap, least, expected):
    base = np.random.default_rng(0).normal(size=SEEDS)
    own = with_claims(dataclasses.replace(CONTRAST, least=least))
    (found,) = judged(own, {"uniform": base, "per": base + per, "lap": base + lap})
    assert found.verdict == expected and found.seeds == 16
    np.testing.assert_allclose(found.differences, per - lap, atol=1e-5)
    assert set(found.runs) == {"walk/4 uniform", "walk/4 per", "walk/4 lap"}
    assert definition.from_json(own.to_json()).claims == own.claims


def runs_of(*values):
    return Runs("an arm", "walk/4", pd.Series(values, dtype=float), id="x", code="y")


def test_contrasts_of_steps_count_doublings_and_unsolved_runs_as_the_whole_run():
    # 400 -> 100 saves two doublings; unsolved counts as 1,600; both unsolved: no gain.
    steps = runs_of(-100, -100, -np.inf, -100), runs_of(-400, -np.inf, -np.inf, -200)
    none = runs_of(-100, -100, -100, np.nan), runs_of(-100, -100, -100, -100, -100)
    saved, other = contrast([steps, none], end=1600.0)
    np.testing.assert_array_equal(saved.values, [2, 4, 0, np.nan])  # one of the four diverged
    np.testing.assert_array_equal(other.values, [0, 0, 0, np.nan])
    assert saved.first(2).pair[0].values.size == 2 and saved.ids == ("x", "x")


def test_a_diverged_baseline_is_no_evidence_about_a_gain():
    first, second = contrast(
        [(runs_of(3.0, 3.0), runs_of(1.0, 1.0)), (runs_of(2.0, 2.0), runs_of(np.nan, 1.0))], None
    )
    assert count_pairs(first.values, second.values) == Counts(1, 1, 0)


def test_contrasts_need_evidence_of_both_gains():
    """An arm of the second pair that draws uniformly tests nothing."""
    own = with_claims(CONTRAST)
    frames = frames_of(own, {"uniform": np.zeros(16), "per": np.ones(16), "lap": -np.ones(16)})
    for point in own.points():
        frames[point.id]["replayed/effective_buffer"] = 0.99 if point.label == "lap" else 0.5
    (found,) = judge.family(own, own.claims["one"], frames, made_of(own), plan=False)
    assert found.verdict == "not tested" and "0.99" in found.reason
    with refused("rank"):
        with_claims(dataclasses.replace(CONTRAST, beside=("rank", "uniform"))).check()


def test_families_are_corrected_and_decided_independently():
    rng = np.random.default_rng(1)
    wins = np.where(rng.uniform(size=SEEDS) < 0.75, 1.0, -1.0)
    values = {"uniform": np.zeros(SEEDS), "per": wins, "lap": np.tile([1.0, -1.0], SEEDS // 2)}
    many = tuple(Claim(f"claim {k}", "lap", "uniform") for k in range(10))
    own = with_claims(alone=(BETTER,), among=(BETTER, *many))
    (alone,) = judged(own, values, "alone")
    among = judged(own, values, "among")[0]
    assert alone.p_value <= among.p_value
    low, high = alone.interval
    assert among.interval[0] <= low and high <= among.interval[1]


def test_claims_with_equal_text_all_train_seeds():
    own = with_claims(BETTER, dataclasses.replace(BETTER, arm="lap"))
    values = dict.fromkeys(("per", "lap"), np.tile([1.0, -1.0], 8)) | {"uniform": np.zeros(16)}
    found = judge.judge(own, frames_of(own, values), made_of(own), plan=False)
    assert len(found.undecided) == 2
    assert_names(next(iter(found.undecided.values())).label, "one", BETTER.says)
    seeds, points = judge.next_look(own, found)
    assert seeds == 32 and len(points) == 3
    # Claims about failed points get no further seeds; the others continue.
    assert set(judge.next_look(own, found, {"walk/4 per"})[1]) == {"walk/4 uniform", "walk/4 lap"}


def test_later_divergence_keeps_decisions_about_a_column():
    claim = dataclasses.replace(BETTER, primary="mean:agent/kl")
    own = with_claims(claim)
    values = dict.fromkeys(("uniform", "per", "lap"), np.zeros(SEEDS))
    frames = frames_of(own, values)
    for point in own.points():
        frames[point.id]["agent/kl"] = 1.0 * (point.label == "per")
    (before,) = judge.family(own, (claim,), frames, made_of(own), plan=False)
    lost = frames["walk/4 per"]
    lost["agent/loss"] = np.where(lost["seed"] == SEEDS - 1, np.nan, 1.0)
    (after,) = judge.family(own, (claim,), frames, made_of(own), plan=False)
    assert (before.verdict, before.counts) == (after.verdict, after.counts)
    assert after.verdict == "agrees"


def test_claims_about_absent_arms_are_refused():
    absent = Claim("rank is better", "rank", "uniform")
    own = with_claims(absent, BETTER)
    values = {"uniform": np.zeros(16), "per": np.ones(16), "lap": np.zeros(16)}
    refused_, found = judged(own, values)
    assert refused_.absent and refused_.verdict == "not tested" and "rank" in refused_.reason
    assert found.verdict == "agrees"
    assert definition.from_json(own.to_json()).claims == own.claims
    # These are refused before training.
    several = with_claims(dataclasses.replace(BETTER, least=1.0), envs=("walk/4", "walk/5"))
    elsewhere = dataclasses.replace(BETTER, where={"env": "walk/9"})
    unknown = dataclasses.replace(BETTER, primary="medal")
    for wrong, parts in ((own, ("rank",)), (several, ("where",)),
                         (with_claims(elsewhere), ("walk/9",)),
                         (with_claims(unknown), ("medal",))):  # fmt: skip
        with refused(*parts):
            wrong.check()


def test_arms_that_differ_beyond_their_method_need_an_explicit_claim():
    large = Arm("lap", sizes={"batch_size": 8})
    own = Study.make(
        "walk/4", "dqn", {"uniform": Arm("uniform"), "lap": large}, seeds="until decided",
        sizes={"batch_size": 4}, claims=[dataclasses.replace(BETTER, arm="lap")],
    )  # fmt: skip
    with refused("batch_size", "across=True"):
        own.check()
    meant = tuple(dataclasses.replace(each, across=True) for each in own.claims["claims"])
    dataclasses.replace(own, claims={"claims": meant}).check()


def test_arms_have_options_of_the_environment():
    arms = {"uniform": "uniform", "projected": Arm("uniform", env={"project": 3})}
    own = Study.make("walk/4", "dqn", arms, env_options={"max_steps": 9})
    options = {label: config.env_options for (_, label), config in own.bases.items()}
    assert [(own.max_steps, own.project) for own in options.values()] == [(9, None), (9, 3)]


def test_studies_report_the_verdicts_of_their_claims():
    own = with_claims(BETTER, dataclasses.replace(BETTER, arm="lap", says="lap is better"))
    values = {"uniform": np.zeros(SEEDS), "per": np.ones(SEEDS), "lap": -np.ones(SEEDS)}
    found = judge.judge(own, frames_of(own, values), made_of(own), plan=False)
    assert [row["verdict"] for row in found.claims] == ["agrees", "disagrees"]
    assert found.to_json(own)["claims"] == list(found.claims)
    header, *rows = judged_figures.claim_cells(found.claims)
    assert rows[0][:3] == [BETTER.says, "per", "uniform"]
    assert rows[1][header.index("wins/losses/ties")] == f"0/{found.claims[1]['losses']}/0"


def test_claims_about_settings_of_one_arm_are_reported(tmp_path, capsys):
    low, high = "per replay.alpha=0.4", "per replay.alpha=0.6"
    own = Study.make(
        "walk/4", "dqn", ["per"], seeds=2, grid={"replay.alpha": [0.4, 0.6]},
        loop={"steps": 60, "warmup": 20, "eval_every": 20, "eval_episodes": 1, "inspect": 0},
        sizes={"batch_size": 4, "capacity": 40}, agent_options={"hidden": (4,)},
        question=Question(primary="final", control=False),
        options=StudyOptions(figures=False, report=False),
        claims=[Claim("alpha |0.6| is better", high, low)],
    )  # fmt: skip
    found = runner.run(own, tmp_path / "x")
    rows = found.verdicts()
    assert rows["claim"].tolist() == ["alpha |0.6| is better"]
    saved = json.loads((tmp_path / "x/verdicts.json").read_text())
    assert saved["claims"][0]["verdict"] == rows["verdict"][0] and not saved["arms"]
    assert r"alpha \|0.6\| is better" in (tmp_path / "x/study.md").read_text()
    assert "alpha |0.6| is better: " in capsys.readouterr().out
    text = study_page.render(results.Results(found.store, own, found.findings))
    assert "alpha |0.6| is better" in text
    words = [str(tmp_path / "x/study.json"), "--out", str(tmp_path / "again")]
    assert main([*words, "--dry-run"]) == 0  # files of studies define studies
    assert_names(capsys.readouterr().err, "walk/4 per", "replay.alpha", "4")
