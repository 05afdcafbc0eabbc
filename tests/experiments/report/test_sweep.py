"""The page of a sweep, checked against the table of the committed sweep."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects
import pytest

from experiments.report import best, page, settings
from experiments.statistics import tuned
from experiments.statistics.bootstrap import bootstrap_interval, iqm, stratified_interval
from experiments.statistics.markdown import number
from experiments.statistics.paired import probability_of_improvement
from experiments.studies import results, store
from experiments.studies.options import Question
from experiments.studies.results import Results
from tests.experiments.report.reader import Page
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
    return Page(page.render(walk))


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
    assert rows["per"]["of points"] == "15" and rows["uniform"]["of points"] == "1"


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
    plots = [plot for plot in shown.plots if "replay.alpha" in str(plot["layout"]["xaxis"])]
    (plot,) = plots
    lines = {t["meta"]: t for t in plot["data"] if "error_y" in t}
    assert set(lines) == {"per, beta 0", "per, beta 0.4", "per, beta 1"}
    own = walk.runs[(walk.runs["replay.beta"] == 0.4) & (walk.runs["replay.alpha"] == 0.6)]
    at = sorted(walk.runs["replay.alpha"].dropna().unique()).index(0.6)
    low, high = bootstrap_interval(own["score"])
    np.testing.assert_allclose(lines["per, beta 0.4"]["y"][at], iqm(own["score"]), rtol=1e-6)
    np.testing.assert_allclose(lines["per, beta 0.4"]["customdata"][at], [low, high], rtol=1e-6)
    assert "uniform" in {t["meta"] for t in plot["data"]}  # a band


def test_compute_equals_the_sum_over_points(walk, shown):
    rows = {row[""]: row for row in shown.table("", "runs")}
    assert int(rows["all"]["runs"]) == 160 == len(walk.runs)
    costs = walk.store.facts["costs"]
    assert rows["all"]["device seconds"] == f"{sum(cost['seconds'] for cost in costs):,.0f}"
    assert rows["all"]["compilation (s)"] == f"{sum(cost['compiling'] for cost in costs):,.0f}"


def test_every_plot_has_labelled_axes_and_needs_no_network(shown):
    assert len(shown.plots) == len(shown.titles)
    assert {"#best", "#tasks", "#settings-swept", "#curves"} <= set(shown.references)
    for plot in shown.plots:
        plotly.graph_objects.Figure(plot["data"], plot["layout"])
        assert plot["layout"]["xaxis"]["title"]["text"]
        assert all(trace["meta"] in shown.arms for trace in plot["data"])
    assert all(each.startswith(("#", "data:")) for each in shown.references)
    assert shown.warns("5", "10")  # seeds available, and seeds required for a verdict


def test_verdicts_are_shown_and_plotted_per_seed():
    read = results.read(RESULTS / "papers" / "minatar_dqn_beta.small")
    drawn = Page(page.render(read))
    table = {row["claim"]: row for row in drawn.table("claim", "arm", "against")}
    better = {trace["meta"]: trace for trace in drawn.plot("wins, seed by seed")["data"]}
    rows = {row.label: row for row in read.findings.claimed}
    assert table.keys() == better.keys() == rows.keys() and len(rows) >= 2
    for label, row in rows.items():
        pairs, found = row.pairs, row
        wins, ties, losses = found.counts
        assert table[label]["wins/losses/ties"] == f"{wins}/{losses}/{ties}"
        assert table[label]["verdict"] == row.verdict
        assert better[label]["x"] == pytest.approx([row.estimate])
        assert better[label]["customdata"][0] == pytest.approx(row.interval)
        untested = row.verdict == "not tested"
        assert (better[label]["marker"]["color"] == "#ffffff") == untested
        seeds, middle = (t for t in drawn.plot("differences")["data"] if t["meta"] == label)
        np.testing.assert_allclose(seeds["x"], pairs["differences"], rtol=1e-6)
        np.testing.assert_allclose(middle["x"], [pairs["iqm"]], rtol=1e-6)


def test_tasks_have_equal_weight_on_any_scale_of_scores():
    both = two_tasks()
    (table,) = [b for b in best.tasks(both).blocks if b.kind == "table"]
    rows = {(row[0], row[1]): row for row in table.cells[1:]}
    assert rows["per", "at its best"][2] == "1 [1, 1]"
    assert rows["per", "by default"][2] == "1 [1, 1]"
    assert ("uniform", "by default") not in rows
    assert Page(page.render(both)).plot("improvement")


def test_failed_diverged_and_missing_runs_are_named(walk):
    assert settings.failures(walk) is None
    read = store.read(WALK)
    first = read.frame["point"].iloc[0]
    read.frame.loc[(read.frame["point"] == first) & (read.frame["seed"] == 3), "diverged"] = 1
    read.frame = read.frame[(read.frame["seed"] != 9) | (read.frame["replay"] != "per")]
    read.facts["failed"] = {"walk/10 per seed 9": "<b>agent step 7: broken"}
    text = page.render(Results(read, final(read)))
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
    assert best.tasks(half) is None and [row.label for row in half.best] == ["uniform"]
    assert Page(page.render(half)).warns("10", "160")
    assert isinstance(half.best[0], tuned.Tuned)
