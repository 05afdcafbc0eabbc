"""Pages of runs, checked against committed results and numbers worked by hand."""

import re
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.figures import curves, panels
from experiments.figures.style import styles_of
from experiments.statistics import markdown, summaries
from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.studies import run_page, study_page
from tests.pages import Page

RESULTS = Path(__file__).parents[3] / "experiments" / "results"


@pytest.fixture(scope="module")
def text(made):
    """Return the page of two runs."""
    return run_page.render(run_page.read({"per": made / "run", "twin": made / "run"}, False))


def test_curves_are_interquartile_means_with_bootstrap_intervals():
    frame = pd.read_csv(RESULTS / "sparse_pendulum_td3" / "per" / "metrics.csv")
    axes, table = Figure().subplots(), summaries.curves(frame)
    (panel,) = curves.curve_panels({"per": frame}, styles_of({"per": "per"}), None)
    panel(axes)
    line = axes.get_lines()[0]
    np.testing.assert_allclose(line.get_xdata(), table.index)
    np.testing.assert_allclose(line.get_ydata(), iqm(table.to_numpy().T))
    low, high = bootstrap_interval(table.to_numpy().T)
    corners = axes.collections[0].get_paths()[0].vertices
    assert {*map(tuple, corners)} >= {*zip(table.index, low), *zip(table.index, high)}


def test_figures_of_a_column_show_only_methods_that_define_it():
    folders = {path.parent.name: path for path in (RESULTS / "refer").glob("naf_pendulum/*/m*.csv")}
    frames = {label: pd.read_csv(path) for label, path in sorted(folders.items())}
    methods = {label: "refer" if label == "without" else label for label in frames}
    learning = {label for label, method in methods.items() if method == "refer"}
    assert {"refer", "without"} <= learning < set(frames)
    axes = {}
    for panel in panels.metric_panels(frames, methods, ("replay/", "agent/")):
        own = Figure().subplots()
        panel(own)
        axes[own.get_title(loc="left").replace("\n", " ")] = own
    assert {line.get_label() for line in axes[panels.BETA.title].get_lines()} == learning
    titles = {panels.name_of(column).title for column in ("replay/far_share", "agent/kl")}
    assert titles <= set(axes)


def test_pages_are_static_files_with_valid_figures_of_text(text):
    shown = Page(text)
    assert all(each.startswith(("#", "data:")) for each in shown.references)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(shown.tags)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style
    assert len(text) < 1_000_000
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(shown.figures) > 5 and all(len(texts) > 3 for texts in shown.figures)
    ids: dict[str, str] = {}
    for svg in figures:
        named = svg.replace("<svg", '<svg xmlns:xlink="x"', 1)
        for element in xml.etree.ElementTree.fromstring(named).iter():
            if key := element.get("id"):  # equal ids are of equal elements
                content = xml.etree.ElementTree.tostring(element)
                assert ids.setdefault(key, content).split() == content.split()


def test_pages_show_every_seed_of_every_run(text, made):
    frame = pd.read_csv(made / "run" / "metrics.csv")
    last = frame[frame["step"] == frame["step"].max()].set_index("seed")["eval_return"]
    rows = Page(text).table("seed", "per", "twin")
    assert [int(row["seed"]) for row in rows] == list(last.index)
    for row in rows:
        assert row["per"] == row["twin"] == markdown.number(last[int(row["seed"])])


def test_differing_options_are_separated_from_shared_options():
    configs = {
        "per": {"steps": 100, "replay": "per", "replay_options": {"alpha": 0.6}},
        "pal": {"steps": 100, "replay": "pal"},
    }
    common, differing = study_page.shared_options(configs)
    assert common == [["--steps", "100"]]
    assert differing == [["--replay", "per", "pal"], ["--replay.alpha", "0.6", "-"]]
