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
from experiments.statistics import summaries
from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.studies import run_page, study_page
from tests.pages import Page

RESULTS = Path(__file__).parents[3] / "experiments" / "results"
FOLDERS = ("sparse_pendulum_td3", "refer/naf_pendulum")


def runs(name):
    """Return all runs of a folder."""
    folders = {path.parent.name: path.parent for path in (RESULTS / name).glob("*/config.json")}
    return run_page.read(dict(sorted(folders.items())), other_code=True)


@pytest.fixture(scope="module")
def pages():
    """Return a cached function that renders the page of a folder."""
    rendered = {}

    def read(name):
        if name not in rendered:
            rendered[name] = run_page.render(runs(name))
        return rendered[name]

    return read


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


def test_figures_of_a_column_show_only_methods_that_define_it(pages):
    arms = runs("refer/naf_pendulum")
    methods = {label: arm.replay for label, arm in arms.items()}
    frames = {label: arm.frame for label, arm in arms.items()}
    learning = {label for label, arm in arms.items() if arm.replay == "refer"}
    assert {"refer", "without"} <= learning < set(arms)
    axes = {}
    for panel in panels.metric_panels(frames, methods, ("replay/", "agent/")):
        own = Figure().subplots()
        panel(own)
        axes[own.get_title(loc="left").replace("\n", " ")] = own
    assert {line.get_label() for line in axes[panels.BETA.title].get_lines()} == learning
    titles = {panels.name_of(column).title for column in ("replay/far_share", "agent/kl")}
    assert titles <= set(axes)
    assert Page(pages("refer/naf_pendulum")).shows("Share of far-policy steps")


@pytest.mark.parametrize("name", FOLDERS)
def test_pages_are_static_files_with_valid_figures_of_text(pages, name):
    text = pages(name)
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


def test_pages_depend_only_on_their_source(pages):
    name = "refer/naf_pendulum"
    assert run_page.render(runs(name)) == pages(name)


def test_compilation_seconds_are_read_from_the_timing_table():
    """Compilation happens before the first log point or after a run is resumed."""
    timing = pd.DataFrame(
        {
            "step": [100, 200, 300], "seconds": [6.0, 2.0, 4.0], "start_up": [5.0, 0.0, 3.0],
            "compiling": [7.0, 0.0, 3.0], "steps_per_second": [16.0, 50.0, 25.0],
        }
    )  # fmt: skip
    before = timing[["step", "seconds", "steps_per_second"]]
    assert run_page.time_cells(timing, None) == ["12.0", "25", "8.0", "6.0", "10.0", "50 %"]
    assert run_page.time_cells(before, None) == ["12.0", "25", "-", "6.0", "-", "-"]
    summary = {"train_seconds": 12.0, "steps_per_second": 25.0}
    assert run_page.time_cells(None, summary) == ["12.0", "25", "-", "-", "-", "-"]


def test_differing_options_are_separated_from_shared_options():
    configs = {
        "per": {"steps": 100, "replay": "per", "replay_options": {"alpha": 0.6}},
        "pal": {"steps": 100, "replay": "pal"},
    }
    common, differing = study_page.shared_options(configs)
    assert common == [["--steps", "100"]]
    assert differing == [["--replay", "per", "pal"], ["--replay.alpha", "0.6", "-"]]
