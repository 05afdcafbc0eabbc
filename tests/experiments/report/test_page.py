"""Pages of runs and comparisons, checked against committed results and numbers worked by hand."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects
import pytest

from experiments.figures import panels
from experiments.figures.style import styles_of
from experiments.report import costs, page, settings, source
from experiments.statistics import statistics
from experiments.statistics.bootstrap import bootstrap_interval, iqm
from tests.experiments.report.reader import Page

RESULTS = Path(__file__).parents[3] / "experiments" / "results"
FOLDERS = ("sparse_pendulum_td3", "refer/naf_pendulum")


def runs(name):
    """Return the source of a page from all runs of a folder."""
    folders = {path.parent.name: path.parent for path in (RESULTS / name).glob("*/config.json")}
    return source.runs(dict(sorted(folders.items())), other_code=True)


@pytest.fixture(scope="module")
def pages():
    """Return a cached function that renders the page of a folder."""
    rendered = {}

    def read(name):
        if name not in rendered:
            rendered[name] = page.render(runs(name))
        return rendered[name]

    return read


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


def test_plots_of_a_column_show_only_methods_that_define_it(pages):
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
def test_every_plot_is_valid_plotly_with_labelled_axes(pages, name):
    shown = Page(pages(name))
    assert shown.plots and len(shown.plots) == len(shown.titles)
    for plot in shown.plots:
        plotly.graph_objects.Figure(plot["data"], plot["layout"])  # refuses unknown properties
        assert plot["layout"]["xaxis"]["title"]["text"]
        named = plot["layout"]["yaxis"].get("ticktext") or plot["layout"]["yaxis"]["title"]["text"]
        assert named
        for trace in plot["data"]:
            assert trace["meta"] in shown.arms or not shown.arms


@pytest.mark.parametrize("name", FOLDERS)
def test_pages_load_nothing_from_the_network(pages, name):
    text = pages(name)
    shown = Page(text)
    assert all(each.startswith(("#", "data:")) for each in shown.references)
    assert not {"link", "iframe", "object", "embed", "base"} & set(shown.tags)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style
    assert text.count("* plotly.js v") == 1
    assert len(text) < 6_000_000


def test_pages_depend_only_on_their_source(pages):
    name = "refer/naf_pendulum"
    assert page.render(runs(name)) == pages(name)


def test_compilation_seconds_are_read_from_the_timing_table():
    """Compilation happens before the first log point or after a run is resumed."""
    timing = pd.DataFrame(
        {
            "step": [100, 200, 300], "seconds": [6.0, 2.0, 4.0], "start_up": [5.0, 0.0, 3.0],
            "compiling": [7.0, 0.0, 3.0], "steps_per_second": [16.0, 50.0, 25.0],
        }
    )  # fmt: skip
    before = timing[["step", "seconds", "steps_per_second"]]
    section = costs.of_runs(
        {"per": timing, "lap": before}, {}, dict(styles_of({"per": "per", "lap": "lap"}))
    )
    assert section is not None
    assert section.blocks[0].cells[1:] == [
        ["per", "12.0", "25", "8.0", "6.0", "10.0", "50 %"],
        ["lap", "12.0", "25", "-", "6.0", "-", "-"],
    ]


def test_differing_options_are_separated_from_shared_options():
    arms = {
        "per": {"--steps": "100", "--replay": "per", "--replay.alpha": "0.6"},
        "pal": {"--steps": "100", "--replay": "pal"},
    }
    shared, apart = settings.split(arms)
    assert shared == {"--steps": "100"}
    assert apart == {
        "--replay": {"per": "per", "pal": "pal"},
        "--replay.alpha": {"per": "0.6", "pal": "-"},
    }
