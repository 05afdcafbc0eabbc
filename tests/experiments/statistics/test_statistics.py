import json

import numpy as np
import pandas as pd
import pytest

from experiments.statistics import statistics
from experiments.statistics.statistics import curves, steps_to, summarise
from tests.refusals import refused


def metrics(returns: list[list[float]], steps=(100, 200, 300)) -> pd.DataFrame:
    """Rows of seeds x log points as the log writes them."""
    rows = [
        {"seed": seed, "step": step, "eval_return": curve[i], "loss": 1.0}
        for i, step in enumerate(steps)
        for seed, curve in enumerate(returns)
    ]
    return pd.DataFrame(rows)


def test_steps_to_takes_the_first_log_point_at_the_threshold():
    steps, returns = [10, 20, 30, 40], [1.0, 5.0, 2.0, 9.0]
    assert steps_to(5.0, steps, returns) == 20
    assert steps_to(9.5, steps, returns) is None
    assert steps_to(1.0, steps, [np.nan] * 4) is None


def test_curves_drop_log_points_without_evaluation():
    nan = np.nan
    table = curves(metrics([[nan, 2.0, 3.0], [nan, 4.0, nan]]))
    assert list(table.index) == [200, 300]
    assert table.loc[200].tolist() == [2.0, 4.0]


def test_summary_by_hand():
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
def test_median_steps_are_between_the_middle_seeds_if_both_reached(threshold, reached, median):
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


def test_summary_without_threshold_or_order():
    frame = metrics([[1.0, 2.0, 3.0]]).iloc[::-1]
    summary = summarise(frame)
    assert summary["final_return"] == [3.0]
    assert summary["final_interval"] == [3.0, 3.0]
    assert "reached" not in summary


def test_metrics_without_evaluation_are_refused():
    with refused("evaluation"):
        summarise(metrics([[np.nan] * 3]))


def test_seeds_diverge_if_nothing_was_finite_between_two_log_points():
    frame = pd.DataFrame(
        {
            "seed": [0, 1, 2, 3, 0, 1, 2, 3],
            "agent/loss": [1.0, np.nan, 1.0, 1.0, 2.0, 3.0, 1.0, 1.0],
            "agent/grad_norm": [1.0, 1.0, 1.0, 1.0, 2.0, 3.0, np.nan, 1.0],
            "agent/skipped": [0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0],
            "agent/actor_loss": [np.nan] * 8,  # of agents whose actor learns more rarely
        }
    )
    assert statistics.diverged(frame) == [1, 2, 3]
    assert statistics.diverged(frame[["seed"]]) == []
