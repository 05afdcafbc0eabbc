"""Runs of a study that need the host: environments there, and replays in its memory."""

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


def test_a_study_on_the_host_has_the_numbers_of_single_runs(study, tmp_path):
    results = runner.run(study, tmp_path / "study", show=False)
    table = results.table()
    assert sorted(table["replay"].unique()) == ["per", "uniform"]
    assert not (tmp_path / "study" / hosted.RUNS).exists()  # they have ended
    config = study.bases["gymnasium/CartPole-v1", "per"]
    execute(config, tmp_path / "run")
    alone = pd.read_csv(tmp_path / "run" / "metrics.csv").sort_values(["seed", "step"])
    own = table[table["replay"] == "per"]
    assert own["eval_return"].tolist() == pytest.approx(alone["eval_return"].tolist())
    assert own["seed"].tolist() == alone["seed"].tolist()


def test_ended_runs_are_kept_and_the_others_continue(study, tmp_path, monkeypatch):
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


def test_a_replay_on_the_host_is_part_of_a_study(tmp_path):
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


def test_runs_of_the_user_next_to_a_study_stay(tmp_path):
    """A study in a folder that has runs of `experiments.train` in its folder `runs`."""
    made = Study.make(
        "walk/4", "dqn", {"uniform": "uniform"}, seeds=2, question=Question(control=False),
        **OPTIONS,
    )  # fmt: skip
    execute(made.bases["walk/4", "uniform"], tmp_path / "runs" / "mine")
    for more in ({}, {"overwrite": True}):
        runner.run(made, tmp_path, show=False, **more)
        assert (tmp_path / "runs" / "mine" / "metrics.csv").is_file()
