"""Configurations of older runs, read under the names of this version."""

import pytest

from experiments.runs import same_config
from experiments.runs.renamed import up_to_date
from experiments.runs.run_config import RunConfig, defaults


@pytest.mark.parametrize(("before", "now"), [(True, "host"), (False, "device")])
def test_frames_on_host_is_replay_on(before, now):
    config = defaults("gymnax/CartPole-v1", "dqn", "per").to_json()
    old = {**config, "sizes": {**config["sizes"], "frames_on_host": before}}
    del old["sizes"]["replay_on"]
    read = RunConfig.from_json(old)
    assert read.sizes.replay_on == now
    assert same_config.differing(old, read.to_json()) == []
    differs = same_config.differing(old, config)
    assert differs == (["replay_on"] if before else [])
    assert up_to_date(config) is config


def test_the_clock_of_ners_is_its_time_feature():
    config = defaults("gymnax/CartPole-v1", "dqn", "ners").to_json()
    options = {**config["replay_options"], "clock": "episode"}
    del options["time_feature"]
    old = {**config, "replay_options": options}
    read = RunConfig.from_json(old)
    assert read.replay_options.time_feature == "episode"
    assert same_config.differing(old, read.to_json()) == []
    assert same_config.differing(old, config) == ["replay.time_feature"]
