"""Gains over many games, by hand."""

import itertools

import pandas as pd
import pytest

from experiments.papers import gains
from experiments.papers.tables import Data

# Final scores are means over the last five of six evaluations; two seeds each.
RETURNS = {
    ("uniform", "a"): ([9, 1, 1, 1, 1, 1], [9, 3, 3, 3, 3, 3]),  # 2 in the mean
    ("uniform", "b"): ([0, -4, -4, -4, -4, -4], [0, -4, -4, -4, -4, -4]),
    ("per", "a"): ([0, 1, 2, 3, 4, 5], [0, 5, 5, 5, 5, 5]),  # 4: 100 % more
    ("per", "b"): ([0, -5, -5, -5, -5, -5], [0, -5, -5, -5, -5, -5]),  # 25 % less
}


def data(*arms):
    runs = ((key, seeds) for key, seeds in RETURNS.items() if key[0] in arms)
    rows = [
        {"arm": arm, "env": env, "seed": seed, "step": 10 * (i + 1), "eval_return": value}
        for (arm, env), seeds in runs
        for (seed, values), i in itertools.product(enumerate(seeds), range(6))
        for value in values[i : i + 1]
    ]
    return Data(pd.DataFrame(rows), {})


def test_mean_and_median_by_hand():
    pairs = {"PER over uniform": ("per", "uniform"), "rank over uniform": ("rank", "uniform")}
    header, *rows = gains.mean_and_median(data("uniform", "per"), pairs)
    assert header[1:] == ["mean gain", "median gain", "games in which it is higher"]
    assert rows == [["PER over uniform", "37.50 %", "37.50 %", "1 of 2"]]  # rank has not run


def test_gains_of_seeds_by_hand():
    found = gains.of_seeds(data("uniform", "per").frame, "uniform")
    assert set(found["arm"]) == {"per"}
    # Seed by seed 3 - 1 and 5 - 3 of 2; twice -5 - (-4) of 4.
    assert found["value"].tolist() == pytest.approx([100, 100, -25, -25])


def test_until_the_baseline_by_hand():
    # In game a uniform ends at 2, which per's seeds reach at the third and the second of six
    # evaluations; in game b at -4, where per's first evaluation is.
    header, (_, *cells) = gains.until_baseline(data("uniform", "per"), ["per", "rank"], "uniform")
    assert header[1:] == ["per"]
    assert cells == ["29.17 %"]  # median of (50 + 33.3) / 2 and 16.7
