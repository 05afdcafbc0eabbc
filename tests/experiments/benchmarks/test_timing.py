"""Code shared by benchmarks: options, files, alternating turns; comparison of two commits."""

import json
import math

import jax
import numpy as np
import pytest

from experiments.benchmarks import command, commits, replay, timing
from experiments.benchmarks.commits import compare
from tests.refusals import assert_names, refusal


def test_benchmarks_overwrite_only_their_own_files(tmp_path, capsys):
    mine, plan, summary = (tmp_path / name for name in ("mine.json", "plan.md", "summary.json"))
    mine.write_text('{"machine": "mine"}')
    plan.write_text("notes")
    summary.write_text(json.dumps({"env": "x", "versions": {"device": "cpu"}}))  # summary of a run
    for path, *parts in (
        (mine, mine), (summary, summary), (plan, plan, ".json"), (tmp_path, tmp_path, ".json"),
        (mine / "x.json", mine),
    ):  # fmt: skip
        assert_names(refusal(capsys, replay.main, "--out", path), "--out", *parts)
    assert mine.read_text() == '{"machine": "mine"}' and plan.read_text() == "notes"
    ours = tmp_path / "new" / "ours.json"
    assert command.numbers(str(ours)) == ours and not ours.parent.exists()
    command.write(ours, {"turns": 1}, [{"us": [1.0]}])
    assert command.numbers(str(ours)) == ours
    content = json.loads(ours.read_text())
    assert content["results"] == [{"us": [1.0]}] and content["settings"] == {"turns": 1}
    machine = content["machine"]
    assert {"processor", "cores", "python", "jax"} <= machine.keys()
    assert machine["platform"] == jax.default_backend() and machine["devices"] >= 1


# Turns


def test_ratios_are_computed_within_alternating_turns():
    order, times = [], {"a": iter([1, 10, 1]), "b": iter([2, 20, 6])}

    def run_of(name):
        def run(count):
            order.append(name)
            return 1.0 if count == 1 else 1e-3 * count * next(times[name])

        return run

    found = timing.compare({name: run_of(name) for name in times}, 3, 7e-3, least=7)
    assert order[-6:] == ["a", "b", "b", "a", "a", "b"]
    assert found["a"]["us"] == pytest.approx([1e3, 10e3, 1e3]) and found["a"]["ratio"] == 1
    assert found["b"]["median_us"] == pytest.approx(6e3) and found["b"]["ratio"] == 2


def test_number_of_cycles_follows_from_the_duration_of_a_turn():
    assert timing.cycles_for(lambda count: count * 1e-4, 0.1) == pytest.approx(1000, rel=0.01)
    assert timing.cycles_for(lambda count: 5.0, 0.1) == 1
    assert timing.cycles_for(lambda count: 0.0, 0.1) == 1_000_000
    slow = iter([5.0, 0.5])  # the second call compiles too
    assert timing.cycles_for(lambda count: next(slow, count * 1e-4), 0.1) == 1000


# Two commits

METRICS = """seed,step,eval_return,loss
0,200,10.0,0.5
1,200,12.0,
0,400,20.0,0.25
1,400,24.0,0.125
"""
ROUNDED = str(float(np.nextafter(np.float32(0.25), np.float32(1))))  # relative difference 2^-23
INFINITE = METRICS.replace("0.5", "inf")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (METRICS, METRICS.replace("20.0", "20"), {}),
        (METRICS, METRICS.replace("0.25", ROUNDED), {"loss": pytest.approx(2.0**-23, rel=1e-6)}),
        (METRICS, METRICS.replace("24.0", "12.0").replace("0.125", "0.1"),
         {"eval_return": 0.5, "loss": pytest.approx(0.2)}),
        (METRICS, METRICS.replace("12.0,", "12.0,0.5"), {"loss": math.inf}),
        (METRICS.replace("12.0,", "12.0,0.5"), METRICS, {"loss": math.inf}),
        (INFINITE, INFINITE, {}),
        (METRICS, INFINITE, {"loss": math.inf}),
        (METRICS, METRICS.replace("loss", "td_error"), {"loss": math.inf, "td_error": math.inf}),
        (METRICS, METRICS[: METRICS.index("1,400")], {"step": math.inf}),
    ],
)  # fmt: skip
def test_metrics_of_two_commits_are_compared_column_by_column(before, after, expected):
    found = compare(before, after)
    assert found == expected and list(found) == list(expected)  # the largest first


def test_an_unknown_commit_is_rejected_in_one_line(capsys):
    words = ("no-such-commit", "--runs", "dqn_per")
    assert_names(refusal(capsys, commits.main, *words), "no-such-commit")
