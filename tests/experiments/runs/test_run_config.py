"""Configurations of runs: reading, comparison, estimates of run time, and limits of memory."""

import dataclasses
import json

import pytest

from experiments.runs import rates, run_config
from experiments.runs.run_config import RunConfig, defaults
from experiments.studies import plan
from tests.experiments import tiny
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
    assert run_config.differing(PLAIN, tuples) == []


def test_every_option_that_differs_is_named():
    now = PLAIN | {"loop": {"steps": 1}, "replay_options": {"alpha": 0.6, "cap": 3}, "seeds": 9}
    now |= {"agent_options": {"hidden": [64], "double": False}}
    found = ["seeds", "steps", "agent.hidden", "agent.double", "replay.cap"]
    assert run_config.differing(PLAIN, now) == found


def test_options_missing_from_earlier_versions_take_their_defaults():
    config = json.loads(json.dumps(defaults("gymnax/Pendulum-v1", "sac", "per").to_json()))
    old = json.loads(json.dumps(config))
    del old["agent_options"]["critics"], old["replay_options"]["maximum"], old["loop"]["inspect"]
    del old["env_options"]["sticky"]
    assert RunConfig.from_json(old).to_json() == RunConfig.from_json(config).to_json()
    assert run_config.differing(old, config) == run_config.differing(config, old) == []


EDITS = [
    (lambda c: c["loop"].update(gamma="high"), ("loop", "gamma", "high")),
    (lambda c: c["loop"].update(gamma=2.0), ("loop", "gamma", "2.0")),
    (lambda c: c["agent_options"].update(double="no"), ("double", "no", "true", "false")),
    (lambda c: c["agent_options"].update(hidden=64), ("hidden", "64", "(64,)")),
    (lambda c: c.pop("sizes"), ("sizes",)),
    (lambda c: c.update(sizes=3), ("sizes", "3")),
    (lambda c: c.update(seeds="two"), ("seeds", "two")),
    (lambda c: c.update(seeds=True), ("seeds", "True")),
    (lambda c: c["loop"].update(gamam=0.9), ("loop.gamam",)),
    (lambda c: c.update(env="gymnax/CartPoleX"), ("gymnax/CartPoleX", "--list")),
    (lambda c: c.update(replay="perr"), ("perr", "--replay perr")),
]


@pytest.mark.parametrize(("edit", "parts"), EDITS)
def test_edited_configs_are_refused_by_field(tmp_path, edit, parts):
    saved = json.loads(json.dumps(CONFIG.to_json()))
    edit(saved)
    with refused(tmp_path, *parts):
        run_config.from_folder(saved, tmp_path)


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


@pytest.mark.parametrize(
    ("env", "platform", "limit", "parts"),
    [
        ("gymnax/Pendulum-v1", "gpu", 3e6, ("2 runs", "capacity", "seeds")),
        ("gymnax/Pendulum-v1", "cpu", 9e6, ("2 runs", "capacity", "seeds")),
        ("gymnasium/Pendulum-v1", "cpu", 9e6, ("2 runs", "capacity", "seeds")),
    ],
)
def test_runs_beyond_the_memory_are_refused(env, platform, limit, parts):
    config = defaults(env, "td3", "per")
    sizes = dataclasses.replace(config.sizes, capacity=100_000)
    (point,) = tiny.study_of(dataclasses.replace(config, sizes=sizes)).points()
    with refused(point.id, *parts):
        plan.fitting(point, 1, int(limit), platform, 2)
    assert plan.fitting(point, 1, int(100 * limit), platform, 2)[1] >= 2


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        *(("gymnax/Pendulum-v1", "inspect", value) for value in (10**9, 2**31 - 1)),
        *((f"{kind}/Pendulum-v1", "eval_episodes", 10**9) for kind in ("gymnax", "gymnasium")),
        *(("gymnax/Pendulum-v1", "updates", value) for value in (10**8, 2**31 - 1)),
        ("gymnax/Pendulum-v1", "learn_every", 2**31 - 1),
    ],
)
def test_options_beyond_memory_or_counters_are_named(env, name, value):
    config = defaults(env, "td3", "per")
    loop = dataclasses.replace(config.loop, **{name: value})
    (point,) = tiny.study_of(dataclasses.replace(config, loop=loop)).points()
    with refused(value) as error:
        plan.fitting(point, 1, 16 * 10**9, "cpu")
    assert name in str(error.value).replace("-", "_")
