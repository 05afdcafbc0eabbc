"""Summaries of runs and the primary metrics of comparisons."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from experiments.statistics import summaries
from experiments.statistics.primary import parse
from experiments.statistics.summaries import summarise
from tests.refusals import refused

NAN = math.nan


def metrics(returns: list[list[float]], steps=(100, 200, 300)) -> pd.DataFrame:
    """Return a table of seeds x log points as written by the log."""
    rows = [
        {"seed": seed, "step": step, "eval_return": curve[i], "loss": 1.0}
        for i, step in enumerate(steps)
        for seed, curve in enumerate(returns)
    ]
    return pd.DataFrame(rows)


def test_summary_equals_values_worked_by_hand():
    returns = [[0, 9, 10], [0, 1, 2], [9, 9, 8], [1, 2, 9], [0, 0, 100]]
    summary = summarise(metrics(returns), threshold=9)
    assert summary["seeds"] == [0, 1, 2, 3, 4]
    assert summary["final_step"] == 300
    assert summary["final_return"] == [10, 2, 8, 9, 100]
    assert summary["final_iqm"] == pytest.approx(9.0)
    low, high = summary["final_interval"]
    assert 2 <= low < 9 < high <= 100
    assert summary["mean_return"] == pytest.approx([19 / 3, 1, 26 / 3, 4, 100 / 3])
    assert summary["mean_return_iqm"] == pytest.approx((19 / 3 + 26 / 3 + 4) / 3)
    assert summary["steps_to_threshold"] == [200, None, 100, 300, 300]
    assert summary["reached"] == 4
    assert summary["median_steps_to_threshold"] == 300


@pytest.mark.parametrize(
    ("threshold", "reached", "median"), [(1, 4, 100), (2, 3, 200), (3, 2, None), (4, 1, None)]
)
def test_median_steps_average_the_middle_seeds_if_both_solved(threshold, reached, median):
    returns = [[1, 1, 1], [1, 2, 2], [1, 2, 3], [1, 3, 4]]
    summary = summarise(metrics(returns), threshold)
    assert summary["reached"] == reached
    assert summary["median_steps_to_threshold"] == median


def test_summary_of_a_diverged_seed_is_json_without_nan():
    summary = summarise(metrics([[1.0, 1.0, np.nan], [1.0, 2.0, 3.0]]), threshold=3)
    again = json.loads(json.dumps(summary, allow_nan=False))
    assert again["final_return"] == [None, 3.0]
    assert again["final_iqm"] is None
    assert again["final_interval"] == [None, None]


def test_summary_needs_no_threshold_and_no_order_of_rows():
    # Log points without evaluation are ignored.
    frame = metrics([[np.nan, 1.0, 2.0, 3.0]], (50, 100, 200, 300)).iloc[::-1]
    summary = summarise(frame)
    assert summary["final_return"] == [3.0] and summary["mean_return"] == [2.0]
    assert summary["final_interval"] == [3.0, 3.0]
    assert "reached" not in summary


def test_metrics_without_evaluation_are_refused():
    with refused("evaluation"):
        summarise(metrics([[np.nan] * 3]))


def test_seeds_diverge_without_finite_values_between_log_points():
    frame = pd.DataFrame(
        {
            "seed": [0, 1, 2, 3, 0, 1, 2, 3],
            "agent/loss": [1.0, np.nan, 1.0, 1.0, 2.0, 3.0, 1.0, 1.0],
            "agent/grad_norm": [1.0, 1.0, 1.0, 1.0, 2.0, 3.0, np.nan, 1.0],
            "agent/skipped": [0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0],
            "agent/actor_loss": [np.nan] * 8,  # agents with delayed actor updates
        }
    )
    assert summaries.diverged_seeds(frame) == [1, 2, 3]
    assert summaries.diverged_seeds(frame[["seed"]]) == []


def evaluated(returns, steps=(100, 200, 400)) -> pd.DataFrame:
    """Return a table of seeds x log points, one of which has no evaluation."""
    rows = [
        {"seed": seed, "step": step, "eval_return": value}
        for seed, curve in returns.items()
        for step, value in zip(steps, curve)
    ]
    return pd.DataFrame([*rows, {"seed": 3, "step": 500, "eval_return": NAN}])


FRAME = evaluated({3: [0.0, 9.0, 5.0], 1: [2.0, 3.0, NAN], 7: [1.0, 1.0, 7.0]})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("final", [NAN, 5.0, 7.0]),
        ("last_1", [NAN, 5.0, 7.0]),
        ("last_2", [NAN, 7.0, 4.0]),
        ("last_3", [NAN, 14 / 3, 3.0]),
        ("best", [NAN, 9.0, 7.0]),
        ("auc", [NAN, (450 + 1400) / 300, (100 + 800) / 300]),
        ("steps_to_threshold", [math.inf, 200.0, 400.0]),
    ],
)
def test_primary_metrics_equal_values_worked_by_hand(name, values):
    metric = parse(name, threshold=5.0)
    result = metric(FRAME.sample(frac=1.0, random_state=0))
    assert metric.name == name and metric.higher_is_better == (name != "steps_to_threshold")
    assert result.index.tolist() == [1, 3, 7]
    np.testing.assert_allclose(result, values)


def test_missing_log_points_repeat_the_evaluation_before():
    whole = metrics([[0, 0, 1, 1], [0, 1, NAN, NAN], [2, 2, 2, 0]], steps=(1, 2, 3, 4))
    before = whole.groupby("seed")["eval_return"].shift()
    same = (whole["eval_return"] == before) | (whole["eval_return"].isna() & before.isna())
    thin = whole[~same | (whole["step"] == 4)]
    assert len(thin) == 9
    pd.testing.assert_frame_equal(summaries.curves(thin), summaries.curves(whole))


def test_area_weights_returns_by_steps():
    evenly = evaluated({0: [4.0, 0.0, 2.0]}, steps=(0, 10, 20))
    assert parse("auc")(evenly)[0] == pytest.approx((2.0 + 1.0) / 2)
    assert parse("auc")(evaluated({0: [4.0]}))[0] == 4.0


@pytest.mark.parametrize("name", ["", "last", "last_0", "last_x", "lowest", "Final"])
def test_unknown_metrics_are_refused_with_valid_names(name):
    with refused(repr(name), "final", "auc", "best", "last_K", "steps_to_threshold"):
        parse(name)
    with refused("steps_to_threshold", "threshold"):
        parse("steps_to_threshold")


@pytest.mark.parametrize(
    ("name", "frame", "parts"),
    [("last_10", FRAME, ("10", "3")), ("final", evaluated({}), ("1", "0"))],
)
def test_too_few_evaluations_are_refused(name, frame, parts):
    with refused(name, *parts):
        parse(name)(frame)
