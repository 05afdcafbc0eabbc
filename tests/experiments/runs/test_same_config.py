"""Runs that go on with other options than they were begun with are refused, by name."""

import pytest

from experiments.runs import same_config

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
    ("now", "says"),
    [
        ({"seeds": 9}, "was made with seeds 5, and this has 9"),
        ({"loop": {"steps": 5000}}, "was made with steps 6000, and this has 5000"),
        ({"agent_options": {"hidden": [64], "double": True}},
         "was made with agent.hidden 256 256, and this has 64"),
        ({"agent_options": {"hidden": [256, 256], "double": False}},
         "was made with agent.double true, and this has false"),
        ({"replay_options": {"alpha": 0.4, "cap": 1}},
         "was made with replay.alpha 0.6, and this has 0.4"),
        ({"replay_options": {"alpha": 0.6, "cap": 1}},
         "was made with replay.cap none, and this has 1"),
        ({"replay_options": {"alpha": 0.6}}, "was made with replay.cap none, and this lacks it"),
        ({"loop": {"steps": 6000, "pace": 9}}, "has no pace, and this has 9"),
    ],
)  # fmt: skip
def test_another_option_is_refused_by_its_name_on_the_command_line(now, says):
    with pytest.raises(ValueError) as refused:
        same_config.check(CONFIG, CONFIG | now, "runs/x")
    ending = "use the same options, or another --out"
    assert str(refused.value) == f"the run in runs/x {says}: {ending}"


def test_every_option_that_differs_is_named():
    now = CONFIG | {"loop": {"steps": 1}, "replay_options": {"alpha": 0.6, "cap": 3, "more": 1}}
    assert same_config.differing(CONFIG, now) == ["steps", "replay.cap", "replay.more"]
