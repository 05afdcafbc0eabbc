"""Runs of a study with environments or replays on the host."""

import dataclasses

import pandas as pd
import pytest

from experiments.runs.interrupt import Stopped
from experiments.runs.run import execute
from experiments.studies import hosted, runner, store
from experiments.studies.options import Question
from experiments.studies.study import Study

LOOP = {"steps": 200, "warmup": 100, "eval_every": 100, "eval_episodes": 1}
OPTIONS = {"loop": LOOP, "sizes": {"batch_size": 8}, "agent_options": {"hidden": (8,)}}


@pytest.fixture
def study():
    return Study.make(
        "gymnasium/CartPole-v1", "dqn", ["uniform", "per"], seeds=2,
        question=Question(control=False), **OPTIONS,
    )  # fmt: skip


def test_studies_on_the_host_equal_single_runs(study, tmp_path):
    results = runner.run(study, tmp_path / "study", show=False)
    table = results.table()
    assert sorted(table["replay"].unique()) == ["per", "uniform"]
    assert not (tmp_path / "study" / hosted.RUNS).exists()  # removed after all runs finished
    config = study.bases["gymnasium/CartPole-v1", "per"]
    execute(config, tmp_path / "run")
    alone = pd.read_csv(tmp_path / "run" / "metrics.csv").sort_values(["seed", "step"])
    own = table[table["replay"] == "per"]
    assert own["eval_return"].tolist() == pytest.approx(alone["eval_return"].tolist())
    assert own["seed"].tolist() == alone["seed"].tolist()


def test_finished_runs_are_kept_and_the_others_resume(study, tmp_path, monkeypatch):
    calls, before = [], hosted.execute

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


def test_studies_support_replays_in_host_memory(tmp_path):
    made = Study.make(
        "walk/4", "dqn", {"uniform": "uniform"}, seeds=2, question=Question(control=False),
        **OPTIONS,
    )  # fmt: skip
    (key,) = made.bases
    config = made.bases[key]
    sizes = dataclasses.replace(config.sizes, replay_on="host")
    own = dataclasses.replace(made, bases={key: dataclasses.replace(config, sizes=sizes)})
    assert all(point.hosted for point in own.points())
    assert len(runner.run(own, tmp_path / "study", show=False).store.ended()) == 2


def test_foreign_runs_in_the_folder_of_a_study_are_kept(tmp_path):
    """The folder of the study has runs of `experiments.train` in its folder `runs`."""
    made = Study.make(
        "walk/4", "dqn", {"uniform": "uniform"}, seeds=2, question=Question(control=False),
        **OPTIONS,
    )  # fmt: skip
    execute(made.bases["walk/4", "uniform"], tmp_path / "runs" / "mine")
    for more in ({}, {"overwrite": True}):
        runner.run(made, tmp_path, show=False, **more)
        assert (tmp_path / "runs" / "mine" / "metrics.csv").is_file()
