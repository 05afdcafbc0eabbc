"""Whole training loops are timed, ours and around other buffers."""

import importlib.util
import json
import os

import pytest

from experiments.benchmarks import training
from tests.experiments.benchmarks.test_benchmarks import FAST, installed
from tests.refusals import assert_names


def test_training_command(tmp_path, capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("flashbax", "sbx", "rejax") else real(name, *rest),
    )
    out = tmp_path / "training.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "per", "--seeds", "1"]
    argv += ["--capacity", "300", "--matrix", "32", "--out", str(out)]
    assert training.main([*argv, *FAST]) == 0
    content = json.loads(out.read_text())
    uniform, per = content["results"]
    assert (uniform["loop"], per["loop"]) == ("uniform", "per")
    assert uniform["over_uniform"] is None and per["over_uniform"] > -1
    for result in (uniform, per):
        assert len(result["us"]) == 2
        assert min(*result["us"], result["steps_per_second"], result["of_large"]) > 0
    (products,) = content["matrix_products"]
    assert products["large_gflops"] > 0 and products["own_gflops"] > 0
    # 2 forward passes of 128 rows (one of them for the target), one of a row for acting, and the
    # gradient of one, which needs no derivative of the observations. Sums over the four numbers of
    # an observation and over the gradients of two values are no products.
    first, second, head = 4 * 64, 64 * 64, 64 * 2
    forward = 2 * (2 * 128 + 1) * (second + head)
    assert products["operations"] == forward + 2 * 128 * (first + second + head + second)
    assert content["missing"] == ["flashbax", "purejaxrl", "rejax", "sbx"]
    assert per["to_ours"] > 0 and uniform["to_ours"] == 1
    assert min(uniform["compile_seconds"], uniform["program"]["instructions"]) > 0
    assert uniform["large_copies"] == per["large_copies"] == 0
    printed = capsys.readouterr().out
    assert "| uniform " in printed
    assert_names(printed, "sbx", "--rejax", "dqn", "steps/s")


@pytest.mark.skipif(not installed("flashbax"), reason="flashbax is not installed")
def test_our_loop_runs_around_flashbax():
    from experiments.benchmarks import training_loops

    tiny = training_loops.CASES["dqn"]._replace(batch_size=8, hidden=(4,))
    runs, missing = training_loops.around_peers(tiny, seeds=2, capacity=64, only="uniform")
    assert list(runs) == ["flashbax uniform"] and missing == {}
    assert runs["flashbax uniform"].run(3) > 0


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--capacity", "100"], ("capacity", "100", "256")),
        (["--cores", "1", "9999"], ("cores", "9999")),
        (["--purejaxrl", "/nope"], ("purejaxrl", "/nope")),
        (["--rejax", "/nope"], ("rejax", "/nope")),
        (["--rejax", "/nope", "--peers", "none"], ("rejax", "peers")),
    ],
)
def test_training_command_refuses_in_one_line_before_anything_is_compiled(argv, parts, capsys):
    with pytest.raises(SystemExit):
        training.main(argv)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert_names(printed, *parts)


@pytest.mark.slow
def test_training_is_timed_on_a_number_of_cores(tmp_path, capsys):
    before = os.sched_getaffinity(0)
    out = tmp_path / "training.json"
    argv = ["--cases", "dqn", "--replays", "uniform", "--seeds", "1", "--peers", "none"]
    argv += ["--capacity", "300", "--matrix", "32", "--out", str(out), "--cores", "1"]
    assert training.main([*argv, *FAST]) == 0
    content = json.loads(out.read_text())
    assert [result["cores"] for result in content["results"]] == [1]
    assert content["machine"]["cores"] == 1 and content["settings"]["cores"] == [1]
    assert os.sched_getaffinity(0) == before


def test_turns_of_slow_training_loops_have_enough_steps():
    settings = training.Settings(seconds=1.0)
    assert training._steps(training.Loop(lambda count: 0.4 * count), settings) == 20
    assert training._steps(training.Loop(lambda count: 0.01 * count), settings) == 100
