"""What a page shows is what the folders hold: checked on committed results, nothing is trained."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects
import pytest

from experiments.figures import panels
from experiments.report import page, source
from experiments.statistics import statistics
from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.statistics.tables import number
from tests.experiments.report.reader import Page
from tests.refusals import assert_names

RESULTS = Path(__file__).parents[3] / "experiments" / "results"
FOLDERS = ("sparse_pendulum_td3", "breakout_dqn", "walk_dqn", "refer/naf_pendulum")


@pytest.fixture(scope="module")
def pages():
    """Pages by folder, rendered when asked for, once."""
    rendered = {}

    def read(name):
        if name not in rendered:
            rendered[name] = page.render(source.comparison(RESULTS / name))
        return rendered[name]

    return read


@pytest.mark.parametrize("name", FOLDERS[:3])
def test_verdicts_are_those_of_the_judge(pages, name):
    saved = json.loads((RESULTS / name / "verdicts.json").read_text())
    rows = {row["arm"]: row for row in Page(pages(name)).table("arm", "effective buffer")}
    assert list(rows) == list(saved["arms"])
    for label, arm in saved["arms"].items():
        row, pairs = rows[label], arm["pairs"]
        assert row["verdict"] == arm["verdict"]
        assert row["wins/losses/ties"] == f"{pairs['wins']}/{pairs['losses']}/{pairs['ties']}"
        assert row["effective buffer"] == number(arm["effective_buffer"])
        assert row["sampler updates"] == number(arm["sampler_updates"])
        low, high = pairs["improvement_interval"]
        shown = f"{number(pairs['improvement'])} [{number(low)}, {number(high)}]"
        assert row["P(improvement) [95 %]"] == shown


def test_the_table_is_that_of_the_comparison(pages):
    """Cell by cell what `comparison.md` has."""
    text = (RESULTS / "breakout_dqn" / "comparison.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    start = next(k for k, line in enumerate(lines) if line.startswith("| arm"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    (found,) = [t for t in Page(pages("breakout_dqn")).tables if t[0] == cells[0]]
    assert found[1:] == cells[2:]


def test_curves_are_interquartile_means_with_bootstrap_intervals(pages):
    name = "sparse_pendulum_td3"
    traces = Page(pages(name)).plot("arms")["data"]
    frame = pd.read_csv(RESULTS / name / "per" / "metrics.csv")
    table = statistics.curves(frame)
    band, line = [trace for trace in traces if trace["meta"] == "per"]
    np.testing.assert_allclose(line["x"], table.index)
    np.testing.assert_allclose(line["y"], iqm(table.to_numpy().T), rtol=1e-6)
    low, high = bootstrap_interval(table.to_numpy().T)
    np.testing.assert_allclose(band["y"], [*high, *low[::-1]], rtol=1e-6, atol=1e-6)


def test_differences_are_shown_for_every_seed(pages):
    saved = json.loads((RESULTS / "breakout_dqn" / "verdicts.json").read_text())
    traces = Page(pages("breakout_dqn")).plot("differences")["data"]
    for label, arm in saved["arms"].items():
        points, interval = [trace for trace in traces if trace["meta"] == label]
        np.testing.assert_allclose(points["x"], arm["pairs"]["differences"], rtol=1e-6)
        np.testing.assert_allclose(interval["x"], [arm["pairs"]["iqm"]], rtol=1e-6)
        ends = interval["customdata"][0]
        np.testing.assert_allclose(ends, arm["pairs"]["iqm_interval"], rtol=1e-6)


def test_untested_arms_are_hollow_and_named(pages):
    shown = Page(pages("sparse_pendulum_td3"))
    saved = json.loads((RESULTS / "sparse_pendulum_td3" / "verdicts.json").read_text())
    untested = [label for label, arm in saved["arms"].items() if arm["verdict"] == "not tested"]
    assert untested and len(untested) < len(saved["arms"])
    (line,) = [line for line in shown.warnings if "not tested" in line.lower()]
    assert_names(line, *untested)
    traces = shown.plot("improvement")["data"]
    hollow = {t["meta"] for t in traces if t["marker"]["color"] == "#ffffff"}
    assert hollow == set(untested)


def test_groups_that_learn_equally_often_are_shown_together(pages):
    shown = Page(pages("walk_dqn"))
    assert sum("improvement" in title for title in shown.titles) == 3
    assert_names(shown.text, "learn_every 16", "2 replays")
    assert "per" in shown.arms and "per_every16" not in shown.arms  # one switch for all groups


def test_what_is_not_there_is_left_out(pages, tmp_path):
    bare, full = (Page(pages(name)) for name in ("breakout_dqn", "sparse_pendulum_td3"))
    assert {"#curves", "#replayed", "#priorities", "#time"} <= set(full.references)
    assert not {"#curves", "#replayed"} & set(bare.references)
    assert full.code and not bare.code  # without configurations no command
    folder = Path(shutil.copytree(RESULTS / "breakout_dqn", tmp_path / "old"))
    (folder / "verdicts.json").unlink()
    shown = Page(page.render(source.comparison(folder)))
    assert "#verdicts" in shown.references  # where it is said that there are none
    assert not any(table[0][:2] == ["arm", "effective buffer"] for table in shown.tables)


def test_refer_and_per_share_a_column_but_no_plot(pages):
    shown = Page(pages("refer/naf_pendulum"))
    configs = {
        path.parent.name: json.loads(path.read_text())
        for path in (RESULTS / "refer" / "naf_pendulum").glob("*/config.json")
    }
    learning = {label for label, config in configs.items() if config["replay"] == "refer"}
    assert {"refer", "without"} <= learning < set(configs)
    beta = shown.plot(panels.BETA.title)
    assert {trace["meta"] for trace in beta["data"]} == learning
    own = {panels.name_of(column).title for column in ("replay/far_share", "agent/kl")}
    assert own <= set(shown.titles)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_plot_is_one_that_plotly_draws_with_labelled_axes(pages, name):
    shown = Page(pages(name))
    assert shown.plots and len(shown.plots) == len(shown.titles)
    for plot in shown.plots:
        plotly.graph_objects.Figure(plot["data"], plot["layout"])  # refuses unknown properties
        assert plot["layout"]["xaxis"]["title"]["text"]
        named = plot["layout"]["yaxis"].get("ticktext") or plot["layout"]["yaxis"]["title"]["text"]
        assert named
        for trace in plot["data"]:
            assert trace["meta"] in shown.arms or not shown.arms


def test_shares_are_shown_on_the_whole_of_their_axis(pages):
    shown = Page(pages("sparse_pendulum_td3"))
    for title in (panels.REPLAYED["distinct"].title, panels.EXPONENT.title):
        assert shown.plot(title)["layout"]["yaxis"]["range"] == [-0.02, 1.02]


@pytest.mark.parametrize("name", FOLDERS)
def test_pages_need_no_network(pages, name):
    text = pages(name)
    shown = Page(text)
    assert all(each.startswith(("#", "data:")) for each in shown.references)
    assert not {"link", "iframe", "object", "embed", "base"} & set(shown.tags)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style
    assert text.count("* plotly.js v") == 1
    assert len(text) < 6_000_000


def test_a_page_depends_on_nothing_but_its_source(pages):
    name = "breakout_dqn"
    assert page.render(source.comparison(RESULTS / name)) == pages(name)
