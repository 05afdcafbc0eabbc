"""The judge of a study: fixed and sequential designs, and arms that need further seeds."""

import dataclasses
import json
import shutil

import numpy as np
import pandas as pd
import pytest

from experiments import study as command
from experiments import sweep
from experiments.runs.interrupt import Stopped
from experiments.statistics.claims import Claim
from experiments.statistics.counts import Counts
from experiments.statistics.planning import seeds_needed
from experiments.studies import batch, judge, runner, store
from experiments.studies.definition import UNTIL_DECIDED, Study
from experiments.studies.options import Question, Where
from tests.refusals import assert_names, refusal, refused

LOOP = {"steps": 200, "warmup": 100, "eval_every": 50, "eval_episodes": 1}


def study_of(arms=("uniform", "per", "lap"), seeds=UNTIL_DECIDED, grid=None, **question):
    return Study.make(
        "walk/4", "dqn", arms, seeds=seeds, loop=LOOP, grid=grid,
        question=Question(primary="final", **question),
    )  # fmt: skip


def frames_of(study, values, learned=True):
    """Return metrics with given final returns by label, and the facts of the gate.

    If the agents learned, 10 is added to all returns, which is above the threshold of the walk.
    """
    found = {}
    for point in study.points():
        own = np.asarray(values[point.label], float)
        found[point.id] = pd.DataFrame({
            "seed": point.config.seed + np.arange(len(own)), "step": 200,
            "eval_return": own + 10.0 * learned, "replayed/effective_buffer": 0.5, "diverged": 0,
        })  # fmt: skip
    return found


def judged(study, values):
    made = {point.id: {"code": "x", "train_seconds": 1.0} for point in study.points()}
    return judge.judge(study, frames_of(study, values), made)


def test_sequential_studies_end_if_every_run_fails(tmp_path, monkeypatch):
    def fail(*_, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(batch, "train", fail)
    with pytest.raises(Stopped) as stopped:
        runner.run(study_of(control=False), tmp_path / "out", where=Where(devices="1"))
    assert_names(str(stopped.value), "48", "out of memory", "--resume")


def test_decided_arms_stop_and_the_baseline_continues():
    study = study_of(control=False)
    values = {"uniform": np.zeros(16), "per": np.ones(16), "lap": np.tile([1.0, -1.0], 8)}
    found = judged(study, values)
    assert {row.label: row.verdict for row in found.rows} == {
        "per": "better", "lap": "undecided"
    }  # fmt: skip
    assert [*found.undecided] == ["lap"]
    seeds, needed = judge.next_look(study, found)
    assert (seeds, needed) == (32, ["walk/4 uniform", "walk/4 lap"])
    assert judge.next_look(study, None) == (16, [point.id for point in study.points()])


def test_gated_arms_train_no_further_seeds():
    study = study_of(control=False)
    made = {point.id: {"code": "x"} for point in study.points()}
    values = dict.fromkeys(("uniform", "per", "lap"), np.zeros(16))
    values["lap"] = np.tile([1.0, -1.0], 8)
    frames = frames_of(study, values)
    frames["walk/4 per"]["replayed/effective_buffer"] = 0.99
    found = judge.judge(study, frames, made, plan=False)
    assert {row.label: row.verdict for row in found.rows}["per"] == "not tested"
    assert [*found.undecided] == ["lap"]


def test_nothing_is_tested_where_nobody_learns_or_all_seeds_tie():
    study, zeros = study_of(control=False), np.zeros(16)
    made = {point.id: {"code": "x"} for point in study.points()}
    values = {"uniform": zeros, "per": np.tile([0.5, -0.5], 8), "lap": zeros}
    for learned, parts in ((False, ("walk/4",)), (True, ("16", "10"))):
        found = judge.judge(study, frames_of(study, values, learned), made, plan=False)
        judged = {row.label: row for row in found.rows}
        assert judged["lap"].verdict == "not tested"
        assert_names(judged["lap"].reason, *parts)
        assert (judged["per"].verdict == "not tested") == (not learned)
        assert (judge.next_look(study, found) is None) == (not learned)


def test_ties_of_the_first_look_end_no_claim_unless_all_values_are_the_same():
    """With 90 % ties, all of 16 pairs tie in one study of five."""
    study = study_of(("uniform", "per"), control=False)
    varied = np.arange(16.0)
    for values, undecided in ((varied, ["per"]), (np.zeros(16), [])):
        found = judged(study, {"uniform": values, "per": values})
        assert [*found.undecided] == undecided
    later = np.concatenate([varied, np.arange(100.0) + 1])
    base = np.concatenate([varied, np.arange(100.0)])
    found = judged(study, {"uniform": base[:112], "per": later[:112]})
    assert found.rows[0].verdict == "better"


@pytest.mark.parametrize("seeds", [12, UNTIL_DECIDED])
def test_floors_are_not_tested_whatever_the_margin(seeds):
    claims = [
        Claim("better", "per", "uniform", least=0.1),
        Claim("as good", "per", "uniform", "at least as good", least=0.1),
        Claim("as good without a margin", "per", "uniform", "at least as good"),
    ]
    study = Study.make(
        "walk/4", "dqn", ["uniform", "per"], seeds=seeds, loop=LOOP, claims=claims,
        question=Question(primary="final", control=False),
    )  # fmt: skip
    values = np.zeros(16 if seeds == UNTIL_DECIDED else seeds)
    found = judged(study, {"uniform": values, "per": values})
    assert {own["verdict"] for own in found.claims} == {"not tested"}


def test_tasks_on_which_nobody_learned_train_no_further_seeds():
    study = Study.make(
        ("walk/4", "walk/5"), "dqn", ["uniform", "per"], seeds=UNTIL_DECIDED, loop=LOOP,
        claims=[Claim("PER is better", "per", "uniform")],
        question=Question(primary="final", control=False),
    )  # fmt: skip
    frames = frames_of(study, {"uniform": np.zeros(16), "per": np.tile([1.0, -1.0], 8)})
    for point in study.points():
        frames[point.id]["eval_return"] -= 20.0 * (point.env == "walk/5")
    made = {point.id: {"code": "x"} for point in study.points()}
    found = judge.judge(study, frames, made, plan=False)
    assert judge.next_look(study, found) == (32, ["walk/4 uniform", "walk/4 per"])


def test_studies_train_at_most_the_maximum_number_of_seeds():
    study = study_of(most_seeds=20, control=False)
    even = {"uniform": np.zeros(16), "per": np.tile([1.0, -1.0], 8)}
    even["lap"] = even["per"]
    assert judge.next_look(study, judged(study, even))[0] == 20
    more = {name: np.resize(values, 20) for name, values in even.items()}
    assert judge.next_look(study, judged(study, more)) is None
    # A verdict requires ten seeds for any size of batch.
    study = dataclasses.replace(study_of(seeds=4), question=Question(until_decided=True))
    for seeds, most, looks in ((10, 45, [10, 20, 30, 40, 45]), (16, 16, [16]), (16, 32, [16, 32])):
        other = dataclasses.replace(
            study_of(seeds=seeds), question=Question(until_decided=True, most_seeds=most)
        )
        assert other.looks == looks
    assert study.looks[:3] == [12, 16, 20] and judge.next_look(study, None)[0] == 12


def test_settings_are_compared_with_the_baseline_of_equal_settings():
    study = study_of(
        ("uniform", "per"), 10, {"replay.alpha": [0.2, 0.6], "learn_every": [1, 4]}, control=False
    )
    members = judge.members_of(study, study.points())
    assert set(members) == {
        "uniform_every1", "uniform_every4",
        *(f"per_every{every} replay.alpha={alpha}" for every in (1, 4) for alpha in (0.2, 0.6)),
    }  # fmt: skip
    assert members["per_every4 replay.alpha=0.2"].baseline == "uniform_every4"
    assert len({member.group for member in members.values()}) == 2


def test_studies_are_restored_from_their_file():
    study = study_of(grid={"replay.alpha": [0.2, 0.6]}, baseline="uniform")
    saved = json.loads(json.dumps(study.to_json()))
    read = store.studies.from_json(saved).validated("nowhere")
    assert read == study and hash(read.question) == hash(study.question)
    del saved["question"]["margin"]  # as in files of versions without it
    assert store.studies.from_json(saved).question == study.question
    saved["question"]["margins"] = 0.1
    with refused("margins"):
        store.studies.from_json(saved)


def test_unanswerable_questions_are_refused():
    with refused("most_seeds", "12", "16"):
        study_of(most_seeds=12).check()
    with refused("baseline", "pser", "uniform"):
        study_of(baseline="pser").check()
    with refused("margin", "0.7"):
        Question(margin=0.7)
    for section in ("loop", "sizes", "env_options", "agent_options", "replay_options"):
        with refused(section, "nonsense"):
            Study.make("walk/4", "dqn", ["uniform", "per"], **{section: {"nonsense": 1}})
    with refused("seeds", "until decided", "until decide"):
        Study.make("walk/4", "dqn", ["uniform", "per"], seeds="until decide")
    with refused("preset", "nonsense"):
        Study.make("walk/4", "dqn", ["uniform", "per"], preset="nonsense")
    with refused("arms", "['per']"):
        Study.make("walk/4", "dqn", "per")
    with refused("until_decided"):
        study_of(("uniform",)).check()


TINY = [
    "--agent", "dqn", "--envs", "walk/4", "--replays", "uniform", "per", "--steps", "200",
    "--warmup", "100", "--eval-every", "50", "--eval-episodes", "1", "--inspect", "0",
    "--batch-size", "8", "--agent.hidden", "8", "--figures", "false", "--report", "false",
    "--until-decided", "true", "--seeds", "5", "--most-seeds", "15",
    "--ungated", "agents of 200 steps learn nothing",
]  # fmt: skip


@pytest.fixture(scope="module")
def decided(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "one"
    assert sweep.main([*TINY, "--out", str(out)]) == 0
    return out


def test_studies_stopped_between_looks_end_with_the_same_bytes(decided, tmp_path, capsys):
    assert (decided / "looks.png").read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(decided / "study.csv.gz")
    assert table.groupby("point")["seed"].nunique().to_dict() == {
        "walk/4 uniform": 15, "walk/4 per": 15
    }  # fmt: skip
    out = tmp_path / "cut"
    shutil.copytree(decided, out)
    cut = store.read(out)
    lost = (cut.frame["seed"] > 11) | (cut.frame["seed"] == 10) & (cut.frame["replay"] == "per")
    cut.frame = cut.frame[~lost].reset_index(drop=True)
    cut.write()
    assert sweep.main(["--resume", str(out), "--hours", "1e-6"]) == 0
    assert_names(capsys.readouterr().err, "--resume")
    assert sweep.main(["--resume", str(out)]) == 0
    for name in ("study.csv.gz", "verdicts.json"):
        ours, theirs = ((folder / name).read_bytes() for folder in (out, decided))
        if name.endswith("json"):  # seconds differ
            ours, theirs = (json.loads(each) for each in (ours, theirs))
            for each in (ours, theirs):
                for arm in each["arms"].values():
                    arm["train_seconds"] = None
        assert ours == theirs


def test_question_of_a_started_study_is_fixed(decided, capsys):
    assert sweep.main(["--resume", str(decided), "--dry-run"]) == 0
    assert "15" in capsys.readouterr().err  # required seeds
    for words in (["--most-seeds", "50"], ["--margin", "0.2"], ["--until-decided", "false"]):
        said = refusal(capsys, sweep.main, "--resume", decided, *words)
        assert_names(said, words[0][2:].replace("-", "_"), str(decided))


@pytest.mark.parametrize("seeds", [12, UNTIL_DECIDED])
def test_claims_of_a_started_study_are_fixed(tmp_path, seeds):
    better = Claim("PER is better", "per", "uniform")
    study = Study.make("walk/4", "dqn", ["uniform", "per"], seeds=seeds, claims=[better])
    store.begin(tmp_path, study, study.points(), {}).write()

    def resume(*claims):
        store.resume(
            tmp_path, dataclasses.replace(study, claims={"claims": claims}), study.points()
        )

    resume(dataclasses.replace(better, says="the same in other words"))
    for claims in (
        (dataclasses.replace(better, direction="worse"),),
        (dataclasses.replace(better, primary="final"),),
        (dataclasses.replace(better, least=0.5),),
        (better, better),
        (),
    ):
        with refused("claims", str(tmp_path)):
            resume(*claims)


def test_new_studies_say_how_many_seeds_decide(capsys, tmp_path):
    assert sweep.main([*TINY, "--out", str(tmp_path / "new"), "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert_names(said, "60 %", "70 %", "80 %", f"{seeds_needed(Counts(8 * 10**5, 0, 2 * 10**5))}")


def test_python_files_define_studies(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from experiments.studies.definition import Study\n"
        "study = Study.make('walk/4', 'dqn', ['uniform', 'per'], seeds=10, loop={'steps': 2000})\n"
    )
    assert command.main([str(path), "--dry-run"]) == 0
    assert "walk/4 per" in capsys.readouterr().err
    path.write_text("x = 1\n")
    assert_names(refusal(capsys, command.main, path, "--dry-run"), path, "Study.make")
