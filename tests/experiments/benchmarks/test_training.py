"""Timing of complete training loops."""

import json

import pytest

from experiments.benchmarks import training
from tests.experiments.benchmarks.test_replay import FAST
from tests.refusals import assert_names, refusal


@pytest.mark.slow  # compiles the same programs as the other benchmarks
def test_training_command_runs(tmp_path, capsys):
    out = tmp_path / "training.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "per", "--seeds", "1", "--capacity", "300"]
    assert training.main([*argv, *FAST, "--out", str(out)]) == 0
    content = json.loads(out.read_text())
    uniform, per = content["results"]
    assert (uniform["loop"], per["loop"]) == ("uniform", "per")
    for result in (uniform, per):
        assert len(result["us"]) == 2
        assert min(*result["us"], result["steps_per_second"]) > 0 and result["large_copies"] == 0
    assert per["to_ours"] > 0 and uniform["to_ours"] == 1
    assert_names(capsys.readouterr().out, "uniform", "per", "dqn", "steps_per_second")


@pytest.mark.slow
def test_distributed_and_single_loops_are_timed(tmp_path):
    out = tmp_path / "training.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "--seeds", "4", "--capacity", "300"]
    assert training.main([*argv, "--distributed", "true", *FAST, "--out", str(out)]) == 0
    together, distributed = json.loads(out.read_text())["results"]
    assert distributed["loop"] == "uniform, distributed"
    assert together["large_copies"] == 0 and distributed["steps_per_second"] > 0


def test_capacities_below_the_batch_are_rejected_before_compilation(capsys):
    assert_names(refusal(capsys, training.main, "--capacity", "100"), "capacity", "100", "256")
