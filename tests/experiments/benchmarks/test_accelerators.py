"""The benchmark of accelerators, on the CPU; sizes are too small to measure speed."""

import dataclasses

import pytest

from experiments.benchmarks import accelerators, training
from experiments.benchmarks.training import Case
from tests.refusals import assert_names, refusal

FAST = accelerators.Settings(turns=1, seconds=0.002, capacity=64, batch_size=32)


def small(method="uniform"):
    case = Case("dqn", "walk/10", 32, (4,))
    config = training.run_config(case, method, 2, 64)
    return dataclasses.replace(config, loop=dataclasses.replace(config.loop, warmup=40))


def test_costs_are_of_a_cycle_and_of_a_training_step():
    cycle = accelerators.cycle_cost("per", None, 64, 32)
    assert cycle.platform == "cpu" and cycle.conditionals == 0 and cycle.copies == 0
    assert accelerators.loop_cost(small("per"), None).launches > cycle.launches


def test_cycles_and_loops_are_timed_with_the_memory_that_was_promised():
    row = accelerators.time_cycle("uniform", FAST)
    assert row["median_us"] > 0 and row["promised_MB"] is None
    row = accelerators.time_loop("dqn/uniform", small(), FAST)
    assert (row["seeds"], row["num_envs"]) == (2, 1) and row["median_us"] > 0
    assert row["promised_MB"] > 0
    config = accelerators.brax_config("per", 256)
    assert config.sizes.num_envs == 256 and config.env == "brax/ant"


def test_machines_without_compilers_and_accelerators_say_so(monkeypatch, capsys):
    def lacks(*args):
        raise ImportError("pip install it")

    monkeypatch.setattr(accelerators, "_cost", lacks)
    assert accelerators.main(["--cases", "uniform"]) == 0
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("pip install it") == 2


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--capacity", "100"], ("capacity", "256")),
        (["--loop-capacity", "100"], ("loop_capacity", "256")),
        (["--cases", "dqn/rank"], ("dqn/rank",)),
    ],
)
def test_impossible_benchmarks_are_refused(argv, named, capsys):
    assert_names(refusal(capsys, accelerators.main, *argv), *named)
