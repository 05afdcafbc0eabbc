"""Configurations of runs: reading, comparison, and estimates of run time."""

import dataclasses
import json
import sys

import pytest

from experiments.runs import rates, run_config
from experiments.runs.run_config import RunConfig, defaults
from tests.refusals import refused

CONFIG = defaults("gymnax/CartPole-v1", "dqn", "per")
PLAIN = {
    "agent": "dqn",
    "seeds": 5,
    "loop": {"steps": 6000},
    "agent_options": {"hidden": [256, 256], "double": True},
    "replay_options": {"alpha": 0.6, "cap": None},
}


def test_tuples_equal_the_lists_of_their_json():
    tuples = PLAIN | {"agent_options": {"hidden": (256, 256), "double": True}}
    run_config.check_same(PLAIN, tuples, "runs/x")
    assert run_config.differing(PLAIN, tuples) == []


@pytest.mark.parametrize(
    ("now", "parts"),
    [
        ({"seeds": 9}, ("seeds", "5", "9")),
        ({"loop": {"steps": 5000}}, ("steps", "6000", "5000")),
        ({"agent_options": {"hidden": [64], "double": True}}, ("agent.hidden", "256 256", "64")),
        ({"agent_options": {"hidden": [256, 256], "double": False}},
         ("agent.double", "true", "false")),
        ({"replay_options": {"alpha": 0.4, "cap": 1}}, ("replay.alpha", "0.6", "0.4")),
        ({"replay_options": {"alpha": 0.6, "cap": 1}}, ("replay.cap", "none", "1")),
    ],
)  # fmt: skip
def test_changed_options_are_refused_by_their_command_line_name(now, parts):
    with refused("runs/x", *parts, "--out"):
        run_config.check_same(PLAIN, PLAIN | now, "runs/x")


def test_every_option_that_differs_is_named():
    now = PLAIN | {"loop": {"steps": 1}, "replay_options": {"alpha": 0.6, "cap": 3}}
    assert run_config.differing(PLAIN, now) == ["steps", "replay.cap"]


def test_options_missing_from_earlier_versions_take_their_defaults():
    config = json.loads(json.dumps(defaults("gymnax/Pendulum-v1", "sac", "per").to_json()))
    old = json.loads(json.dumps(config))
    del old["agent_options"]["critics"], old["replay_options"]["maximum"], old["loop"]["inspect"]
    assert RunConfig.from_json(old).to_json() == RunConfig.from_json(config).to_json()
    assert run_config.differing(old, config) == run_config.differing(config, old) == []


EDITS = [
    (lambda c: c["loop"].update(gamma="high"), ("loop", "gamma", "high")),
    (lambda c: c["loop"].update(gamma=2.0), ("loop", "gamma", "2.0")),
    (lambda c: c["agent_options"].update(double="no"), ("double", "no", "true", "false")),
    (lambda c: c["agent_options"].update(hidden=64), ("hidden", "64", "(64,)")),
    (lambda c: c.pop("sizes"), ("config.json", "sizes")),
    (lambda c: c.update(sizes=3), ("config.json", "sizes", "3")),
    (lambda c: c.update(seeds="two"), ("config.json", "seeds", "two")),
    (lambda c: c.update(seeds=True), ("config.json", "seeds", "True")),
    (lambda c: c["loop"].update(gamam=0.9), ("config.json", "loop.gamam")),
    (lambda c: c.update(env="gymnax/CartPoleX"), ("gymnax/CartPoleX", "--list")),
    (lambda c: c.update(replay="perr"), ("perr", "--replay perr")),
]


@pytest.mark.parametrize(("edit", "parts"), EDITS)
def test_edited_configs_are_refused_by_field(tmp_path, edit, parts):
    saved = json.loads(json.dumps(CONFIG.to_json()))
    edit(saved)
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with refused(tmp_path, *parts):
        run_config.read(tmp_path)


def test_reading_a_run_imports_no_module_named_by_its_config(tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    saved = CONFIG.to_json() | {"env": "gymnasium/evil_module:Foo-v0"}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with refused("evil_module", "--env gymnasium/evil_module:Foo-v0"):
        run_config.read(tmp_path)
    assert "evil_module" not in sys.modules


def test_estimates_of_the_time_are_proportional_to_steps_and_seeds():
    longer = dataclasses.replace(CONFIG.loop, steps=3 * CONFIG.loop.steps)
    twice = dataclasses.replace(CONFIG, loop=longer, seeds=2 * CONFIG.seeds)
    assert rates.seconds(twice) == pytest.approx(6 * rates.seconds(CONFIG))
    assert rates.seconds(dataclasses.replace(CONFIG, agent="mypackage.myagent")) > 0


@pytest.mark.parametrize(
    ("minutes", "words"),
    [(0.5, "30 s"), (2, "2 min"), (179, "179 min"), (240, "4 h"), (3 * rates.DAY, "3 days")],
)
def test_durations_are_formatted_in_words(minutes, words):
    assert rates.in_words(minutes) == words
