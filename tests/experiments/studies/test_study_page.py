"""The page of a sweep, checked against the table of the committed sweep."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.figures import judged, sensitivity
from experiments.figures.style import styles_of
from experiments.statistics import tuned
from experiments.statistics.bootstrap import bootstrap_interval, iqm, stratified_interval
from experiments.statistics.markdown import number
from experiments.statistics.paired import probability_of_improvement
from experiments.studies import results, store, study_page
from experiments.studies.options import Question
from experiments.studies.results import Results
from tests.pages import Page
from tests.refusals import assert_names

RESULTS = Path(__file__).parents[3] / "experiments" / "results"
WALK = RESULTS / "sweeps" / "walk_per"


@pytest.fixture(scope="module")
def walk():
    return results.read(WALK)


def final(read):
    """Return the study of a store with another primary metric."""
    return dataclasses.replace(read.study, question=Question(primary="final"))


@pytest.fixture(scope="module")
def shown(walk):
    return Page(study_page.render(walk))


def two_tasks():
    """Return a sweep of two tasks and two methods, of which the second is always better."""
    read = store.read(WALK)
    per = [name for name, point in read.facts["points"].items() if point["replay"] == "per"][:2]
    uniform = "walk/10 uniform"
    points, frames = {}, []
    for env, gap in (("a", 1.0), ("b", 100.0)):
        for place, name in enumerate([uniform, *per]):
            own = f"{env} {name}"
            points[own] = read.facts["points"][name] | {"env": env}
            for seed in range(4):
                frames.append({
                    "point": own, "env": env, "replay": points[own]["replay"], "agent": "dqn",
                    "method": points[own]["method"], "replay.alpha": [np.nan, 0.2, 0.4][place],
                    "replay.beta": np.nan, "seed": seed, "step": 10, "diverged": 0,
                    "eval_return": gap * (place + seed / 10),
                })  # fmt: skip
    base = {e: {"uniform": f"{e} {uniform}", "per": f"{e} {per[0]}"} for e in "ab"}
    read.facts |= {"points": points, "costs": [], "base_points": base}
    read.frame = pd.DataFrame(frames)
    return Results(read, final(read))


def test_best_points_are_shown_on_held_out_seeds(walk, shown):
    rows = {row["method"]: row for row in shown.table("method", "best settings")}
    per = walk.runs[walk.runs["replay"] == "per"]
    means = {point: iqm(own[own["seed"] % 2 == 0]["score"]) for point, own in per.groupby("point")}
    own = per[(per["point"] == min(means, key=means.get)) & (per["seed"] % 2 == 1)]
    low, high = bootstrap_interval(own["score"])
    value = f"{number(iqm(own['score']))} [{number(low)}, {number(high)}]"
    assert rows["per"]["on the others"] == value
    alpha, beta = own["replay.alpha"].iloc[0], own["replay.beta"].iloc[0]
    assert rows["per"]["best settings"] == f"replay.alpha {alpha}, replay.beta {beta}"
    assert rows["per"]["of"] == "15" and rows["uniform"]["of"] == "1"


def test_probability_of_improvement_uses_held_out_seeds(walk, shown):
    rows = {(row["method"], row[""]): row for row in shown.table("method", "")}
    default = walk.store.facts["base_points"]["walk/10"]
    own, other = (
        -walk.runs[(walk.runs["point"] == default[label]) & (walk.runs["seed"] % 2 == 1)][
            "score"
        ].to_numpy()[:, None]
        for label in ("per", "uniform")
    )
    low, high = stratified_interval([own, other], probability_of_improvement)
    middle = probability_of_improvement(own, other)
    assert rows["per", "by default"]["P(better than uniform)"] == (
        f"{number(float(middle))} [{number(float(low))}, {number(float(high))}]"
    )


def test_sensitivity_is_plotted_at_every_value_with_intervals(walk, shown):
    rows = sensitivity.sensitivity_panels(walk.runs, walk.store.settings, walk.study.metric)
    assert list(rows) == ["replay.alpha", "replay.beta"]
    axes = Figure().subplots()
    rows["replay.alpha"][0](axes)
    assert axes.get_xlabel() == "replay.alpha" and shown.shows("replay.alpha", "walk/10")
    bars = {own.get_label(): own for own in axes.containers}
    assert set(bars) == {"per, beta 0", "per, beta 0.4", "per, beta 1"}
    own = walk.runs[(walk.runs["replay.beta"] == 0.4) & (walk.runs["replay.alpha"] == 0.6)]
    at = sorted(walk.runs["replay.alpha"].dropna().unique()).index(0.6)
    line, _, (ends,) = bars["per, beta 0.4"]
    np.testing.assert_allclose(line.get_ydata()[at], iqm(own["score"]))
    interval = bootstrap_interval(own["score"])
    np.testing.assert_allclose(ends.get_segments()[at][:, 1], np.stack(interval))
    assert "uniform" in {own.get_label() for own in axes.get_lines()}  # a band


def test_compute_equals_the_sum_over_points(walk, shown):
    rows = {row["compute"]: row for row in shown.table("compute", "runs")}
    assert int(rows["all"]["runs"]) == 160 == len(walk.runs)
    costs = walk.store.facts["costs"]
    assert rows["all"]["device seconds"] == f"{sum(cost['seconds'] for cost in costs):,.0f}"
    assert rows["all"]["of these compiling"] == f"{sum(cost['compiling'] for cost in costs):,.0f}"


def test_sections_are_linked_and_few_seeds_are_named(shown):
    assert {"#best", "#tasks", "#settings-swept", "#curves"} <= set(shown.references)
    assert all(each.startswith("#") for each in shown.references)
    assert shown.warns("5", "10")  # seeds available, and seeds required for a verdict


def test_verdicts_are_shown_and_drawn_per_seed():
    read = results.read(RESULTS / "papers" / "minatar_dqn_beta.small")
    drawn = Page(study_page.render(read))
    table = {row["claim"]: row for row in drawn.table("claim", "arm", "against")}
    rows = read.findings.claimed
    assert table.keys() == {row.label for row in rows} and len(rows) >= 2
    assert drawn.shows("Wins, seed by seed") and drawn.shows("Differences, seed by seed")
    better, by = Figure().subplots(1, 2)
    styles = styles_of({row.label: row.label for row in rows})
    judged.draw_improvement(better, rows, styles, "x", "wins")
    judged.draw_differences(by, rows, styles, "x", "by")
    points = [line for line in better.get_lines() if line.get_marker() == "o"]
    seeds = [line for line in by.get_lines() if line.get_alpha() == 0.5]
    for place, row in enumerate(rows):
        wins, ties, losses = row.counts
        assert table[row.label]["wins/losses/ties"] == f"{wins}/{losses}/{ties}"
        assert table[row.label]["verdict"] == row.verdict
        assert points[place].get_xydata().tolist() == [[row.estimate, place]]
        untested = row.verdict == "not tested"
        assert (points[place].get_markerfacecolor() == "white") == untested
        np.testing.assert_array_equal(seeds[place].get_xdata(), row.pairs["differences"])


def test_tasks_have_equal_weight_on_any_scale_of_scores():
    both = two_tasks()
    rows = Page(study_page.render(both)).table("method", "")
    assert [[*row.values()] for row in rows] == [
        ["per", "at its best", "1 [1, 1]"], ["per", "by default", "1 [1, 1]"],
    ]  # fmt: skip


def test_failed_diverged_and_missing_runs_are_named(walk):
    assert "#failures" not in Page(study_page.render(walk)).references
    read = store.read(WALK)
    first = read.frame["point"].iloc[0]
    read.frame.loc[(read.frame["point"] == first) & (read.frame["seed"] == 3), "diverged"] = 1
    read.frame = read.frame[(read.frame["seed"] != 9) | (read.frame["replay"] != "per")]
    read.facts["failed"] = {"walk/10 per seed 9": "<b>agent step 7: broken"}
    text = study_page.render(Results(read, final(read)))
    shown = Page(text)
    assert_names(shown.text, f"{first}, seed 3")
    assert_names(shown.text, "walk/10 per seed 9", "<b>agent step 7: broken")
    assert "<b>agent" not in text
    assert shown.warns("145", "160")
    assert shown.warns("1", "failed") and shown.warns("1", "diverged")


def test_incomplete_sweeps_have_a_page(walk):
    """Methods without a complete point are left out."""
    read = store.read(WALK)
    read.frame = read.frame[read.frame["replay"] == "uniform"]
    half = Results(read, final(read))
    assert [row.label for row in half.best] == ["uniform"]
    shown = Page(study_page.render(half))
    assert shown.warns("10", "160") and "#tasks" not in shown.references
    assert isinstance(half.best[0], tuned.Tuned)
