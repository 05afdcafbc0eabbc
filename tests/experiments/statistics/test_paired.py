import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from experiments.statistics.bootstrap import stratified_interval
from experiments.statistics.paired import describe, differences_of, probability_of_improvement
from tests.experiments.statistics.test_bootstrap import X, Y
from tests.refusals import refused

INF, NAN = math.inf, math.nan


def compare(arm, baseline):
    return describe(len(arm), differences_of(arm, baseline))


def test_differences_equal_values_worked_by_hand():
    pairs = compare([3.0, 5.0, 4.0, 9.0], [1.0, 5.0, 5.0, 6.0])
    assert (pairs["seeds"], pairs["differences"]) == (4, (2.0, 0.0, -1.0, 3.0))
    assert pairs["mean"] == pairs["iqm"] == 1.0  # the IQM is that of 0 and 2
    # Of all 16 pairs of seeds, 3 wins one, 5 wins one and ties two, 4 wins one, 9 wins all.
    x, y = np.array([[3.0], [5.0], [4.0], [9.0]]), np.array([[1.0], [5.0], [5.0], [6.0]])
    assert probability_of_improvement(x, y) == (1 + 2 + 1 + 4) / 16
    assert pairs["mean_interval"][0] < 1.0 < pairs["mean_interval"][1]
    # IQM of the differences, not the difference of two IQMs, which is 4 - 1 / 3.
    x, y = [0.0, 1.0, 2.0, 9.0, 9.0], [9.0, 0.0, 0.0, 0.0, 1.0]
    assert compare(x, y)["iqm"] == pytest.approx((1 + 2 + 8) / 3)


@pytest.mark.parametrize("lost", [INF, -INF, NAN])
def test_seeds_without_a_number_leave_no_differences(lost):
    pairs = compare([100.0, lost, 50.0], [90.0, 80.0, 70.0])
    assert pairs.pop("seeds") == 3 and set(pairs.values()) == {None}
    json.dumps(pairs, allow_nan=False)


@hypothesis.given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2))
@hypothesis.settings(max_examples=20, deadline=None)
def test_swapping_the_arms_mirrors_all_results(values):
    x, y = np.array(values[:4], dtype=float).T
    forth, back = compare(x, y), compare(y, x)
    assert forth["mean"] == pytest.approx(-back["mean"])
    assert forth["iqm_interval"] == pytest.approx([-end for end in back["iqm_interval"][::-1]])


@pytest.mark.parametrize(("arm", "baseline"), [([1.0, 2.0], [1.0]), ([[1.0]], [[1.0]])])
def test_arms_without_pairs_are_refused(arm, baseline):
    with refused(np.shape(arm), np.shape(baseline)):
        differences_of(arm, baseline)
    with refused("seeds"):
        compare([1.0], [2.0])  # no interval


def test_probability_of_improvement_equals_rliable():
    assert probability_of_improvement(X, Y) == pytest.approx(0.6)
    assert probability_of_improvement(Y, X) == pytest.approx(0.4)
    assert probability_of_improvement(X[:, :1], Y[:, :1]) == pytest.approx(0.7)


def test_intervals_of_the_improvement_equal_rliable():
    # 20 000 resamples give [0.3, 1] for the first task; the statistic has steps of 1 / 40.
    exact = stratified_interval([X[:, :1], Y[:, :1]], probability_of_improvement)
    assert exact == pytest.approx((0.3, 1.0))
    drawn = stratified_interval([X, Y], probability_of_improvement, resamples=20_000)
    assert drawn == pytest.approx((0.375, 0.8167), abs=0.01)
