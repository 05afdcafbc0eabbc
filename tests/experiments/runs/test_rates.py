"""Estimates of how long runs take."""

import dataclasses

import pytest

from experiments.runs import rates
from experiments.runs.run_config import defaults


def test_more_steps_and_seeds_take_longer_in_proportion():
    config = defaults("gymnax/CartPole-v1", "dqn", "per")
    longer = dataclasses.replace(config.loop, steps=3 * config.loop.steps)
    twice = dataclasses.replace(config, loop=longer, seeds=2 * config.seeds)
    assert rates.seconds(twice) == pytest.approx(6 * rates.seconds(config))


def test_an_agent_from_elsewhere_has_an_estimate_too():
    config = defaults("gymnax/CartPole-v1", "dqn", "per")
    assert rates.seconds(dataclasses.replace(config, agent="mypackage.myagent")) > 0
