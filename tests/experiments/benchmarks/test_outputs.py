"""Code shared by benchmarks: options, tables, alternating turns, comparison of two commits."""

import json
import math

import jax
import numpy as np
import pytest

from experiments.benchmarks import command, commits, methods, timing
from experiments.benchmarks.commits import Outcome, compare
from experiments.runs.results import versions
from tests.refusals import assert_names, refusal


def test_benchmarks_overwrite_only_their_own_files(tmp_path, capsys):
    mine, plan, summary = (tmp_path / name for name in ("mine.json", "plan.md", "summary.json"))
    mine.write_text('{"machine": "mine"}')
    plan.write_text("notes")
    summary.write_text(json.dumps({"env": "x", "versions": versions()}))  # summary of a run
    for path, *parts in (
        (mine, mine), (summary, summary), (plan, plan, ".json"), (tmp_path, tmp_path, ".json"),
        (mine / "x.json", mine),
    ):  # fmt: skip
        assert_names(refusal(capsys, methods.main, "--out", path), "--out", *parts)
    assert mine.read_text() == '{"machine": "mine"}' and plan.read_text() == "notes"
    ours = tmp_path / "new" / "ours.json"
    assert command.numbers(str(ours)) == ours and not ours.parent.exists()
    command.write(ours, {"us": [1.0]})
    assert command.numbers(str(ours)) == ours
    assert json.loads(ours.read_text())["us"] == [1.0]


def test_benchmarks_record_the_machine():
    machine = timing.machine()
    assert machine["platform"] == jax.default_backend()
    assert machine["device"] == jax.devices()[0].device_kind and machine["devices"] >= 1


# Turns


def test_ratios_are_computed_within_alternating_turns():
    order = []

    def run_of(name, seconds):
        def run(count):
            order.append(name)
            return count * seconds

        return run

    runs = {"a": run_of("a", 1e-3), "b": run_of("b", 2e-3)}
    times = timing.compare(runs, 3, 1e-3, {"a": "c", "b": "a"})
    assert order[-6:] == ["a", "b", "b", "a", "a", "b"]
    assert times["a"].us == pytest.approx([1e3] * 3) and times["a"].ratio is None
    assert times["b"].median_us == pytest.approx(2e3) and times["b"].ratio == pytest.approx(2)
    assert timing.ratio([1, 20, 3], [1, 10, 1]) == 2
    counts = []  # at least the requested number of cycles
    timing.take_turns({"a": lambda count: counts.append(count) or 1.0}, 2, 0.1, least=7)
    assert counts[-2:] == [7, 7]


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
        (METRICS, METRICS, Outcome(True, 0.0, 0.0, ())),
        (METRICS, METRICS.replace("20.0", "20"), Outcome(False, 0.0, 0.0, ())),
        (METRICS, METRICS.replace("0.25", ROUNDED),
         Outcome(False, pytest.approx(2.0**-23, rel=1e-6), 0.0, ("loss",))),
        # The first log point is reported separately.
        (METRICS, METRICS.replace("10.0", "8.0").replace("24.0", "12.0"),
         Outcome(False, 0.5, 0.2, ("eval_return",))),
        (METRICS, METRICS.replace("12.0,", "12.0,0.5"),
         Outcome(False, math.inf, math.inf, ("loss",))),
        (METRICS.replace("12.0,", "12.0,0.5"), METRICS,
         Outcome(False, math.inf, math.inf, ("loss",))),
        (INFINITE, INFINITE, Outcome(True, 0.0, 0.0, ())),
        (METRICS, INFINITE, Outcome(False, math.inf, math.inf, ("loss",))),
        (METRICS, METRICS.replace("loss", "td_error"),
         Outcome(False, 0.0, 0.0, ("loss", "td_error"))),
    ],
)  # fmt: skip
def test_metrics_of_two_commits_are_compared_column_by_column(before, after, expected):
    assert compare(before, after) == expected


def test_different_numbers_of_rows_are_reported():
    fewer = METRICS[: METRICS.index("1,400")]
    outcome = compare(METRICS, fewer)
    assert outcome[:3] == (False, math.inf, math.inf)
    assert_names(*outcome.columns, "rows")


def test_an_unknown_commit_is_rejected_in_one_line(capsys):
    words = ("no-such-commit", "--runs", "dqn_per")
    assert_names(refusal(capsys, commits.main, *words), "no-such-commit")
