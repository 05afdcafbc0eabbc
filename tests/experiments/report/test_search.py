"""The page of a search, checked against the table of the committed search."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import plotly.graph_objects
import pytest

from experiments.report import page
from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.statistics.markdown import number
from experiments.studies import results, search_report, store
from experiments.studies.results import Results
from tests.experiments.report.reader import Page
from tests.refusals import assert_names

WALK = Path(__file__).parents[3] / "experiments" / "results" / "sweeps" / "walk_search"


@pytest.fixture(scope="module")
def walk():
    return results.read(WALK)


@pytest.fixture(scope="module")
def shown(walk):
    return Page(page.render(walk))


def test_best_settings_are_shown_on_fresh_seeds(walk, shown):
    rows = {row["method"]: row for row in shown.table("method", "best settings")}
    studies = walk.store.facts["search"]["studies"]["walk/10"]
    table, choose = walk.runs, walk.runs["seed"] < 10
    for point, column in (("best", "on fresh seeds"), ("default", "by default, on fresh seeds")):
        own = table[(table["point"] == studies["per"][point]) & ~choose]["score"]
        low, high = bootstrap_interval(own)
        assert len(own) == 10
        assert rows["per"][column] == f"{number(iqm(own))} [{number(low)}, {number(high)}]"
    best = min(studies["per"]["trials"], key=lambda trial: trial["score"])
    assert best["point"] == studies["per"]["best"]
    assert rows["per"]["on the seeds that chose"].startswith(number(best["score"]))
    assert rows["per"]["best settings"] == "replay.alpha 0.9449, replay.beta 0.04739"
    assert rows["per"]["wins/losses/ties"] == "8/1/1"
    assert "replay." not in rows["uniform"]["best settings"]  # no settings to choose
    assert [row.shown.seeds for row in walk.best] == [10, 10]


def test_trials_are_plotted_in_order_and_against_each_setting(walk, shown):
    trials = walk.store.facts["search"]["studies"]["walk/10"]["per"]["trials"]
    scores = [trial["score"] for trial in trials]
    plots = {plot["layout"]["xaxis"]["title"]["text"]: plot for plot in shown.plots}
    line, dots = plots["trial"]["data"]
    np.testing.assert_allclose(dots["y"], scores, rtol=1e-6)
    np.testing.assert_allclose(line["y"], np.minimum.accumulate(scores), rtol=1e-6)
    for name in ("replay.alpha", "replay.beta"):
        dots, ring = plots[name]["data"]
        values = [walk.store.facts["points"][trial["point"]]["settings"][name] for trial in trials]
        np.testing.assert_allclose(dots["x"], values, rtol=1e-6)
        assert ring["x"] == [values[int(np.argmin(scores))]]
    (row,) = shown.table("", "trials")
    assert (row["trials"], row["lowest"]) == ("64", number(min(scores)))
    for plot in shown.plots:
        plotly.graph_objects.Figure(plot["data"], plot["layout"])
    assert all(each.startswith(("#", "data:")) for each in shown.references)


def test_best_settings_are_named_if_the_table_lacks_runs_of_their_trial(walk):
    found = store.read(WALK)
    best = found.facts["search"]["studies"]["walk/10"]["per"]["best"]
    found.frame = found.frame[(found.frame["point"] != best) | (found.frame["seed"] != 0)]
    row = Results(found, found.study).best_of("walk/10", "per")
    assert row.chosen is None and row.shown == walk.best_of("walk/10", "per").shown
    cells = Page(page.render(Results(found, found.study))).table("method", "best settings")
    cells = {cell["method"]: cell for cell in cells}["per"]
    assert cells["best settings"] == "replay.alpha 0.9449, replay.beta 0.04739"
    assert cells["on the seeds that chose"] == "-" and cells["wins/losses/ties"] == "8/1/1"


def test_ids_of_seeds_have_no_separators():
    asked = {"search": "random", "trials": 8, "seeds": [1_000, 1_001]}
    assert_names(search_report.budget(asked), "1000", "1001")


def test_running_searches_have_a_page():
    found = store.read(WALK)
    found.frame = found.frame[found.frame["seed"] < 10]
    study = found.facts["search"]["studies"]["walk/10"]["per"]
    study["trials"] = study["trials"][:8]
    study["trials"][3] |= {"score": None, "failed": "seed 2: <b>diverged"}
    study["trials"][4] |= {"score": None, "failed": "no such thing", "point": "walk/10 per gone"}
    text = page.render(Results(found, found.study))
    half = Page(text)
    assert half.warns("walk/10", "per", "8", "64")
    assert half.warns("walk/10", "uniform")
    assert_names(half.text, "walk/10 per gone", "no such thing")
    assert "#trials" in half.references and "<b>div" not in text
    (row,) = half.table("", "trials")
    assert (row["trials"], row["failed"]) == ("8", "2")
    del found.facts["search"]["studies"]
    assert "#trials" not in Page(page.render(Results(found, found.study))).references


def test_methods_with_only_failed_trials_show_their_defaults():
    found = store.read(WALK)
    study = found.facts["search"]["studies"]["walk/10"]["per"]
    study["best"] = None
    study["trials"] = [trial | {"score": None, "failed": "seed 0: x"} for trial in study["trials"]]
    shown = Page(page.render(Results(found, found.study)))
    rows = {row["method"]: row for row in shown.table("method", "best settings")}
    assert "replay." not in rows["per"]["best settings"]
    assert rows["per"]["best settings"] != rows["uniform"]["best settings"]
    assert rows["per"]["by default, on fresh seeds"].startswith("16,504")
    assert_names(shown.text, "44", "study.json")


def test_diverged_fresh_seeds_lose_and_are_counted(tmp_path):
    found = store.read(Path(shutil.copytree(WALK, tmp_path / "s")))
    best = found.facts["search"]["studies"]["walk/10"]["per"]["best"]
    own = (found.frame["point"] == best) & found.frame["seed"].isin(range(10, 17))
    found.frame.loc[own, "diverged"] = 1
    lost = Results(found, found.study)
    shown = Page(page.render(lost))
    rows = {row["method"]: row for row in shown.table("method", "best settings")}
    assert_names(rows["per"]["on fresh seeds"], "7", "10", "diverged")
    assert "diverged" not in rows["per"]["by default, on fresh seeds"]
    wins, losses, ties = map(int, lost.against_default(lost.best_of("walk/10", "per")).split("/"))
    assert rows["per"]["wins/losses/ties"] == f"{wins}/{losses}/{ties}"
    assert losses >= 7 and wins + losses + ties == 10
    study = found.study
    options = dataclasses.replace(study.options, figures=False)
    without = dataclasses.replace(study, options=options)
    text = search_report.conclude(Results(found, without))
    (line,) = [line for line in text.splitlines() if "replay.alpha" in line and "|" in line]
    assert_names(line, "7", "10", "diverged")
