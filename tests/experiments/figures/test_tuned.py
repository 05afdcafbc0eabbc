"""Tuning results and sensitivity of sweeps, on tables made by hand."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.figures import sensitivity
from experiments.statistics import primary, tuned
from experiments.studies import conclusion
from tests.refusals import assert_names

SETTINGS = ("replay.alpha", "replay.beta")


def table(scores):
    """Return a sweep's table: (label, alpha, beta) -> returns [seeds] of one evaluation."""
    rows = [
        {
            "point": f"walk/4 {label} {alpha} {beta}", "env": "walk/4", "replay": label,
            "method": label, "replay.alpha": alpha, "replay.beta": beta, "seed": seed,
            "step": 100, "eval_return": value, "diverged": 0,
        }
        for (label, alpha, beta), values in scores.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def metric(name="final", threshold=None):
    return lambda env: primary.parse(name, threshold)


GRID = table(
    {
        ("per", 0.2, 0.4): [1, 9, 1, 9],
        ("per", 0.6, 0.4): [3, 2, 5, 4],
        ("per", 0.2, 1.0): [0, 0, 0, 0],
        ("per", 0.6, 1.0): [2, 2, 2, 2],
        ("uniform", None, None): [1, 1, 2, 2],
    }
)


def test_best_point_is_chosen_on_half_of_the_seeds_and_shown_on_the_rest():
    scores = tuned.scores(GRID, SETTINGS, metric())
    base = {"walk/4": {"per": "walk/4 per 0.2 0.4"}}
    per, uniform = tuned.tuning_curve(scores, lambda env: True, base)
    # Means on seeds 0 and 2 are 1, 4, 0 and 2; over all seeds another point has the highest mean.
    assert (per.best, per.points, per.chosen.value) == ("walk/4 per 0.6 0.4", 4, 4.0)
    assert (per.shown.value, per.shown.low, per.shown.high) == (3.0, 2.0, 4.0)
    assert per.default is not None and per.default.value == 9.0
    assert uniform.default is None and uniform.shown.value == 1.5


def test_all_seeds_are_shown_for_a_single_point():
    frame = table({("per", None, None): [1, 2, 4, 9], ("uniform", None, None): [1, 1, 2, 2]})
    base = {"walk/4": {"per": "walk/4 per None None"}}
    scores = tuned.scores(frame, SETTINGS, metric())
    per, uniform = tuned.tuning_curve(scores, lambda env: True, base)
    assert per.chosen is None and (per.shown.value, per.shown.seeds) == (3.0, 4)
    assert per.default == per.shown and uniform.shown.value == 1.5
    assert sensitivity.sensitivity_panels(scores, SETTINGS, metric()) == {}


def test_fewer_steps_to_threshold_rank_first_and_unsolved_runs_last():
    frame = table({("per", 0.2, 0.4): [1, 1], ("per", 0.6, 0.4): [0, 0]})
    later = frame.assign(step=200, eval_return=0)
    scores = tuned.scores(
        pd.concat([frame, later]), SETTINGS, metric("steps_to_threshold", 1.0)
    ).set_index("point")
    assert (scores.loc["walk/4 per 0.2 0.4", "score"] == 100).all()
    assert (scores.loc["walk/4 per 0.6 0.4", "score"] == 200).all()
    (row,) = tuned.tuning_curve(scores.reset_index(), lambda env: False, {})
    assert row.best == "walk/4 per 0.2 0.4"


def test_points_with_missing_seeds_are_not_chosen():
    half = GRID[(GRID["point"] != "walk/4 per 0.6 0.4") | (GRID["seed"] < 2)]
    per, _ = tuned.tuning_curve(tuned.scores(half, SETTINGS, metric()), lambda env: True, {})
    assert (per.best, per.points) == ("walk/4 per 0.6 1.0", 3)


def test_sensitivity_lines_are_split_by_other_settings_or_averaged():
    scores = tuned.scores(GRID, SETTINGS, metric())
    lines = sensitivity.lines(scores, "replay.alpha", ["replay.beta"])
    assert [line.label for line in lines] == ["per, beta 0.4", "per, beta 1", "uniform"]
    assert lines[0].values == (0.2, 0.6) and lines[2].values == ()
    np.testing.assert_array_equal(lines[0].scores[1], [3, 2, 5, 4])

    many = {("per", a, b): [a + b, a - b] for a in (0.1, 0.2) for b in range(7)}
    scores = tuned.scores(table(many), SETTINGS, metric())
    lost = (scores["replay.beta"] == 3) & (scores["seed"] == 0)
    scores = scores.assign(diverged=lost.astype(int))
    (line,) = sensitivity.lines(scores, "replay.alpha", ["replay.beta"])
    assert line.label == "per"
    np.testing.assert_allclose(line.scores[0], [0.1 + 3, 0.1 - 3])  # means over beta per seed
    assert line.diverged == (1, 1)  # a seed counts if it diverged with one of seven betas


@pytest.mark.parametrize(
    ("alphas", "scale"), [((0.2, 0.6), "linear"), ((1e-4, 1e-1), "log"), (("a", "iid"), "linear")]
)
def test_every_value_of_a_setting_has_a_tick(alphas, scale):
    frame = GRID.assign(**{"replay.alpha": GRID["replay.alpha"].map(dict(zip((0.2, 0.6), alphas)))})
    scores = tuned.scores(frame, SETTINGS, metric())
    (panel,) = sensitivity.sensitivity_panels(scores, SETTINGS, metric())["replay.alpha"]
    axes = drawn(panel)
    assert axes.get_xscale() == scale
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        sensitivity.value_text(value) for value in alphas
    ]


def drawn(panel):
    """Return axes on which a panel is drawn."""
    axes = Figure().subplots()
    panel(axes)
    return axes


def diverging(scores, lost):
    """Return the table of a sweep in which the seeds `lost[alpha]` diverged."""
    frame = table(scores)
    return frame.assign(
        diverged=[int(seed in lost[a]) for a, seed in zip(frame["replay.alpha"], frame["seed"])]
    )


def chosen(frame, higher=True, name="final", threshold=None):
    scores = tuned.scores(frame, SETTINGS, metric(name, threshold))
    base = {"walk/4": {"per": "walk/4 per 0.2 0.4"}}
    (row,) = tuned.tuning_curve(scores, lambda env: higher, base)
    return row


def test_diverged_points_are_not_chosen_for_high_returns():
    two = {("per", 0.2, 0.4): [120] * 10, ("per", 0.6, 0.4): [100] * 10}
    row = chosen(diverging(two, {0.2: range(10), 0.6: ()}))
    assert row.best == "walk/4 per 0.6 0.4"
    assert (row.shown.value, row.shown.diverged, row.default.diverged) == (100.0, 0, 5)
    assert_names(conclusion.format_estimate(row.default), "120 [120, 120]", "5", "diverged")
    # The interquartile mean cuts a quarter of seeds, rounded down, at either end.
    row = chosen(diverging(two, {0.2: {2}, 0.6: ()}))
    assert row.best == "walk/4 per 0.2 0.4" and row.chosen.diverged == 1


def test_diverged_seeds_rank_last_for_lower_is_better_and_missing_scores():
    two = {("per", 0.2, 0.4): [9] * 4, ("per", 0.6, 0.4): [0] * 4}
    row = chosen(diverging(two, {0.2: range(4), 0.6: ()}), False, "steps_to_threshold", 5.0)
    assert row.best == "walk/4 per 0.6 0.4"
    two = {("per", 0.2, 0.4): [np.nan, np.nan, np.nan, 9], ("per", 0.6, 0.4): [0] * 4}
    row = chosen(table(two))
    assert row.best == "walk/4 per 0.6 0.4" and row.default.diverged == 1


def test_points_are_ranked_by_diverged_seeds_and_then_by_scores():
    two = {("per", 0.2, 0.4): [9] * 8, ("per", 0.6, 0.4): [0] * 8}
    assert chosen(diverging(two, {0.2: range(8), 0.6: {0, 2, 4}})).best == "walk/4 per 0.6 0.4"
    two = {("per", 0.2, 0.4): [-1000] * 5, ("per", 0.6, 0.4): [100] * 5}
    assert chosen(diverging(two, {0.2: {0}, 0.6: {2}})).best == "walk/4 per 0.6 0.4"
    up = {("per", 0.2, 0.4): [9, 9, 1, 1, 0], ("per", 0.6, 0.4): [0, 9, 2, 1, 9]}
    row = chosen(diverging(up, {0.2: {0}, 0.6: {4}}), False, "steps_to_threshold", 5.0)
    assert row.best == "walk/4 per 0.2 0.4"  # solved at once except for a diverged seed


def test_never_solving_ranks_below_solving_at_the_last_evaluation():
    """One rule for scores and for paired comparisons (`count_pairs`)."""
    frame = table({("per", 0.2, 0.4): [0] * 4, ("per", 0.6, 0.4): [9] * 4})
    scores = tuned.scores(frame, SETTINGS, metric("steps_to_threshold", 5.0))
    assert set(scores["score"]) == {100}  # a lower bound for those that never solved it
    assert scores.groupby("replay.alpha")["ranked"].unique().tolist() == [[np.inf], [100]]


def test_panels_show_diverged_seeds():
    two = {("per", 0.2, 0.4): [120] * 10, ("per", 0.6, 0.4): [100] * 10}
    frame = diverging(two, {0.2: range(10), 0.6: ()})
    panels = sensitivity.best_panels([chosen(frame)], {"per": "per"}, metric())
    axes = drawn(panels["walk/4"])
    assert_names(axes.get_yticklabels()[0].get_text(), "per", "5", "diverged", "default")
    points = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert [line.get_xdata().tolist() for line in points] == [[100], [120]]
    assert [line.get_markerfacecolor() == "white" for line in points] == [False, True]
    scores = tuned.scores(frame, SETTINGS, metric())
    (panel,) = sensitivity.sensitivity_panels(scores, SETTINGS, metric())["replay.alpha"]
    (cross,) = [line for line in drawn(panel).get_lines() if line.get_marker() == "X"]
    assert cross.get_xydata().tolist() == [[0.2, 120]]
    (line,) = sensitivity.lines(scores, "replay.alpha", ())
    assert line.diverged == (10, 0)
