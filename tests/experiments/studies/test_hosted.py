"""Runs of a study with environments on the host."""

import pandas as pd
import pytest

from experiments.runs.interrupt import Stopped
from experiments.runs.run import execute
from experiments.runs.run_config import OutputConfig
from experiments.studies import hosted, runner, store
from experiments.studies.options import Question, StudyOptions
from experiments.studies.study import Study


def make_study(env, *replays):
    return Study.make(
        env, "dqn", list(replays), seeds=2, question=Question(control=False),
        loop={"steps": 200, "warmup": 100, "eval_every": 100, "eval_episodes": 1},
        sizes={"batch_size": 8}, agent_options={"hidden": (8,)},
        options=StudyOptions(figures=False, report=False),
    )  # fmt: skip


def test_interrupted_studies_on_the_host_resume_and_equal_single_runs(tmp_path, monkeypatch):
    study, calls, before = make_study("gymnasium/CartPole-v1", "uniform", "per"), [], hosted.execute

    def interrupted(config, *args, **options):
        calls.append(config.replay)
        if len(calls) == 2:
            raise Stopped("stopped", 130)
        return before(config, *args, **options)

    monkeypatch.setattr(hosted, "execute", interrupted)
    with pytest.raises(Stopped):
        runner.run(study, tmp_path / "study", show=False)
    kept = store.read(tmp_path / "study").ended()
    assert {point for point, _ in kept} == {"gymnasium/CartPole-v1 uniform"}
    results = runner.run(study, tmp_path / "study", resume=True, show=False)
    assert calls == ["uniform", "per", "per"] and len(results.store.ended()) == 4
    assert not (tmp_path / "study" / hosted.RUNS).exists()  # removed after all runs finished
    config = study.bases["gymnasium/CartPole-v1", "per"]
    execute(config, tmp_path / "run", OutputConfig(figures=False, tensorboard=False))
    alone = pd.read_csv(tmp_path / "run" / "metrics.csv").sort_values(["seed", "step"])
    own = results.table()[lambda rows: rows["replay"] == "per"]
    assert own["eval_return"].tolist() == pytest.approx(alone["eval_return"].tolist())
    assert own["seed"].tolist() == alone["seed"].tolist()


def test_foreign_runs_in_the_folder_of_a_study_are_kept(tmp_path):
    made, mine = make_study("walk/4", "uniform"), tmp_path / "runs" / "mine" / "metrics.csv"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for more in ({}, {"overwrite": True}):
        runner.run(made, tmp_path, show=False, **more)
        assert mine.read_text() == "mine"
