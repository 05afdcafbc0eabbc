"""Comparison of two commits, on metrics written by hand."""

import math

import numpy as np
import pytest

from experiments.benchmarks import commits
from experiments.benchmarks.commits import Outcome, compare
from tests.refusals import assert_names

METRICS = """seed,step,eval_return,loss
0,200,10.0,0.5
1,200,12.0,
0,400,20.0,0.25
1,400,24.0,0.125
"""


def test_only_equal_bytes_are_identical():
    assert compare(METRICS, METRICS) == Outcome(True, 0.0, 0.0, ())
    assert compare(METRICS, METRICS.replace("20.0", "20")) == Outcome(False, 0.0, 0.0, ())


def test_rounding_is_a_relative_difference_of_its_column():
    rounded = float(np.nextafter(np.float32(0.25), np.float32(1)))  # 2^-23 larger, relatively
    outcome = compare(METRICS, METRICS.replace("0.25", str(rounded)))
    assert outcome.columns == ("loss",) and not outcome.identical
    assert outcome.first == 0.0
    assert outcome.largest == pytest.approx(2.0**-23, rel=1e-6)


def test_the_first_log_point_is_reported_separately():
    after = METRICS.replace("10.0", "8.0").replace("24.0", "12.0")
    assert compare(METRICS, after) == Outcome(False, 0.5, 0.2, ("eval_return",))


@pytest.mark.parametrize("swap", [False, True])
def test_nan_and_a_number_differ_infinitely(swap):
    texts = [METRICS, METRICS.replace("12.0,", "12.0,0.5")]
    outcome = compare(*reversed(texts) if swap else texts)
    assert outcome == Outcome(False, math.inf, math.inf, ("loss",))


def test_equal_infinities_do_not_differ():
    infinite = METRICS.replace("0.5", "inf")
    assert compare(infinite, infinite) == Outcome(True, 0.0, 0.0, ())
    assert compare(METRICS, infinite).largest == math.inf


def test_columns_of_only_one_commit_are_named():
    more = METRICS.replace("loss", "td_error")
    assert compare(METRICS, more) == Outcome(False, 0.0, 0.0, ("loss", "td_error"))


def test_another_number_of_rows_is_reported():
    fewer = METRICS[: METRICS.index("1,400")]
    outcome = compare(METRICS, fewer)
    assert outcome[:3] == (False, math.inf, math.inf)
    assert_names(*outcome.columns, "rows")


def test_an_unknown_commit_is_rejected_in_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        commits.main(["no-such-commit", "--runs", "dqn_per"])
    printed = capsys.readouterr().err
    assert stop.value.code == 2 and printed.count("\n") == 1
    assert_names(printed, "no-such-commit")
