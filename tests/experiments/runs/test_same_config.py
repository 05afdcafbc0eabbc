"""Runs that go on with other options than they were begun with are refused, by name."""

import pytest

from experiments.runs import same_config
from tests.refusals import refused

CONFIG = {
    "agent": "dqn",
    "seeds": 5,
    "loop": {"steps": 6000},
    "agent_options": {"hidden": [256, 256], "double": True},
    "replay_options": {"alpha": 0.6, "cap": None},
}


def test_tuples_are_the_lists_that_json_makes_of_them():
    tuples = CONFIG | {"agent_options": {"hidden": (256, 256), "double": True}}
    same_config.check(CONFIG, tuples, "runs/x")
    assert same_config.differing(CONFIG, tuples) == []


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
        ({"replay_options": {"alpha": 0.6}}, ("replay.cap", "none")),
        ({"loop": {"steps": 6000, "pace": 9}}, ("pace", "9")),
    ],
)  # fmt: skip
def test_another_option_is_refused_by_its_name_on_the_command_line(now, parts):
    with refused("runs/x", *parts, "--out"):
        same_config.check(CONFIG, CONFIG | now, "runs/x")


def test_every_option_that_differs_is_named():
    now = CONFIG | {"loop": {"steps": 1}, "replay_options": {"alpha": 0.6, "cap": 3, "more": 1}}
    assert same_config.differing(CONFIG, now) == ["steps", "replay.cap", "replay.more"]
