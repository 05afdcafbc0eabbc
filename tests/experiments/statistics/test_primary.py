import math

import numpy as np
import pandas as pd
import pytest

from experiments.statistics.primary import described, parse
from tests.refusals import refused

NAN = math.nan


def metrics(returns, steps=(100, 200, 400)) -> pd.DataFrame:
    """Rows of seeds x log points, and one without evaluation."""
    rows = [
        {"seed": seed, "step": step, "eval_return": value}
        for seed, curve in returns.items()
        for step, value in zip(steps, curve)
    ]
    return pd.DataFrame([*rows, {"seed": 3, "step": 500, "eval_return": NAN}])


FRAME = metrics({3: [0.0, 9.0, 5.0], 1: [2.0, 3.0, NAN], 7: [1.0, 1.0, 7.0]})


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
def test_values_by_hand(name, values):
    metric = parse(name, threshold=5.0)
    result = metric(FRAME.sample(frac=1.0, random_state=0))
    assert metric.name == name
    assert result.index.tolist() == [1, 3, 7]
    np.testing.assert_allclose(result, values)


def test_area_weighs_returns_by_steps_and_one_evaluation_is_itself():
    evenly = metrics({0: [4.0, 0.0, 2.0]}, steps=(0, 10, 20))
    assert parse("auc")(evenly)[0] == pytest.approx((2.0 + 1.0) / 2)
    assert parse("auc")(metrics({0: [4.0]}))[0] == 4.0


@pytest.mark.parametrize("name", ["final", "last_5", "auc", "best", "steps_to_threshold"])
def test_metrics_say_how_to_read_them(name):
    metric = parse(name, threshold=475.0)
    assert metric.higher_is_better == (name != "steps_to_threshold")
    assert metric.unit == ("return" if metric.higher_is_better else "agent steps")
    assert metric.help and "\n" not in metric.help
    if name == "steps_to_threshold":
        assert "475" in metric.help


@pytest.mark.parametrize("name", ["", "last", "last_0", "last_x", "lowest", "Final"])
def test_other_names_are_refused_with_those_that_there_are(name):
    with refused(repr(name), "final", "auc", "best", "steps_to_threshold", "last_K"):
        parse(name)


def test_steps_need_a_threshold():
    with refused("steps_to_threshold", "threshold"):
        parse("steps_to_threshold")


@pytest.mark.parametrize(
    ("name", "frame", "parts"),
    [
        ("last_10", FRAME, ("10", "3")),
        ("final", metrics({}), ("1", "0")),
    ],
)
def test_too_few_evaluations_are_refused(name, frame, parts):
    with refused(name, *parts):
        parse(name)(frame)


def test_every_metric_is_described():
    assert set(described()) == {"final", "auc", "best", "last_K", "steps_to_threshold"}
    assert described()["final"] == parse("final").help
