"""The replay suite: tasks, report, and custom methods."""

import pytest

from experiments import suite
from experiments.papers import entry
from experiments.studies import store
from tests.refusals import refused


@pytest.mark.parametrize("task", suite.TASKS, ids=lambda task: task.env)
@pytest.mark.parametrize("smoke", [False, True])
def test_tasks_have_valid_claims_about_every_method(task, smoke):
    study = suite.study_of(task, {"lap": "lap", "rank": "rank"}, smoke)
    study.check()
    labels = {point.name for point in study.points()}
    claims = study.claims["lap"]  # corrected separately from claims of other methods
    assert list(study.claims) == ["lap", "rank"]
    assert {claim.arm for claim in claims} | {claim.baseline for claim in claims} <= labels
    assert len({claim.says for claim in claims}) == len(claims) == (2 if smoke else 4)
    assert study.question.until_decided != smoke


def test_methods_are_left_out_of_incompatible_tasks(tmp_path):
    (walk,) = (task for task in suite.TASKS if task.env == "walk/10")
    (goals,) = (task for task in suite.TASKS if task.env.startswith("goals/"))
    assert list(suite.unfit(walk, {"her": "her", "per": "per"})) == ["her"]
    assert not suite.unfit(goals, {"her": "her"})
    with refused("latest", "dqn"):
        suite.run({"latest": "latest"}, tmp_path, smoke=True)


FALLING = [task for task in suite.TASKS if task.epsilon_steps]


@pytest.mark.parametrize("task", FALLING, ids=lambda task: task.env)
def test_replay_ratios_explore_for_as_many_agent_steps(task):
    for (_, label), config in suite.study_of(task, {"rank": "rank"}).bases.items():
        steps = config.agent_options.epsilon_updates * config.sizes.num_envs
        assert steps * int(label.rpartition("_every")[2]) == task.epsilon_steps


def test_suites_are_written_as_a_table_and_not_mixed(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "TASKS", suite.TASKS[:1])
    monkeypatch.setitem(entry._SMOKE_LOOP, "inspect", 0)
    text = suite.run({"mine": "rank"}, tmp_path, smoke=True)
    assert (tmp_path / "suite.md").read_text() == text
    (row,) = [line for line in text.splitlines() if line.startswith("| walk/10") and "mine" in line]
    assert "not tested" in row  # nobody learns in so few steps
    results = store.read(tmp_path / "walk_10")
    assert len(results.ended()) == 6
    methods = {own["replay"]: own["method"] for own in results.facts["points"].values()}
    assert {method for label, method in methods.items() if "mine" in label} == {"rank"}
    assert suite.run({"mine": "rank"}, tmp_path, smoke=True) == text  # all runs are finished
    with refused(tmp_path, "mine"):
        suite.run({"lap": "lap"}, tmp_path, smoke=True)
