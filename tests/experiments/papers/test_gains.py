"""Gains over many games, worked by hand."""

import pandas as pd
import pytest

from experiments.papers import gains
from experiments.papers.archive import Data

# Six evaluations of three seeds; the final score of a game is the mean of the last five.
RETURNS = {
    ("uniform", "a"): ([9, 1, 1, 1, 1, 1], [9, 1, 1, 1, 1, 1], [9, 2, 3, 4, 5, 6]),  # 2
    ("uniform", "b"): ([0, -4, -4, -4, -4, -4],) * 3,
    ("uniform", "c"): ([0, 1, 1, 1, 1, 1],) * 3,
    ("per", "a"): ([0, 1, 2, 3, 4, 5], [0, 5, 5, 5, 5, 5], [0, 4, 4, 4, 4, 4]),  # 4: 100 % more
    ("per", "b"): ([0, -5, -5, -5, -5, -5],) * 3,  # 25 % less
    ("per", "c"): ([0, 0, 0, 0, 0, 9], [0, 0, 0, 0, 0, 6], [0, 0, 0, 0, 0, 0]),  # 1: equal
}


def data(*runs):
    rows = [
        {"arm": arm, "env": env, "seed": seed, "step": 10 * (i + 1), "eval_return": value}
        for (arm, env), seeds in RETURNS.items()
        if arm in runs or (arm, env) in runs
        for seed, values in enumerate(seeds)
        for i, value in enumerate(values)
    ]
    return Data(pd.DataFrame(rows), {})


PAIRS = {"PER over uniform": ("per", "uniform"), "rank over uniform": ("rank", "uniform")}


def test_mean_and_median_gains_equal_values_worked_by_hand():
    header, *rows = gains.mean_and_median(data("uniform", "per"), PAIRS)
    assert header[1:] == ["mean gain", "median gain", "games in which it is higher"]
    assert rows == [["PER over uniform", "25.00 %", "0.00 %", "1 of 3"]]  # rank has no runs


def test_gains_of_seeds_equal_values_worked_by_hand():
    found = gains.of_seeds(data("uniform", "per").frame, "uniform")
    assert set(found["arm"]) == {"per"}
    # Per seed (3 - 1, 5 - 1, 4 - 4) / 2; (-5 - (-4)) / 4; (1.8 - 1, 1.2 - 1, 0 - 1) / 1.
    by_hand = [100, 200, 0, -25, -25, -25, 80, 20, -100]
    assert found["value"].tolist() == pytest.approx(by_hand)


def test_steps_to_the_baseline_equal_values_worked_by_hand():
    # Game a: uniform ends at 8 / 3, which seeds of per reach at the fourth, second and second of
    # six evaluations. Game b: -4, reached at the first. Game c: 1, reached at the sixth or never.
    header, (_, *cells) = gains.until_baseline(data("uniform", "per"), ["per", "rank"], "uniform")
    assert header[1:] == ["per"]
    assert cells == ["33.33 %"]  # the median of 33.3, 16.7 and 100


def test_games_of_only_one_arm_are_left_out():
    some = data("per", ("uniform", "a"), ("uniform", "c"))
    assert gains.mean_and_median(some, PAIRS)[1:] == [
        ["PER over uniform", "50.00 %", "50.00 %", "1 of 2"]
    ]
    _, (_, *cells) = gains.until_baseline(some, ["per"], "uniform")
    assert cells == ["66.67 %"]  # median of 33.3 and 100


def test_gains_are_omitted_without_a_baseline():
    assert len(gains.mean_and_median(data("per"), PAIRS)) == 1
    header, (_, *cells) = gains.until_baseline(data("per"), ["per"], "uniform")
    assert len(header) == 1 and cells == []
