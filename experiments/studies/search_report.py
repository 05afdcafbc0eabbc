"""Report of a search: the best settings of each method with fresh seeds, and the trials."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.figures import searched, sensitivity
from experiments.figures.drawing import to_matplotlib
from experiments.statistics.markdown import markdown, number
from experiments.storage.files import write_bytes
from experiments.studies.report import costs, format_estimate
from experiments.studies.results import Results
from experiments.studies.store import paths

_MOST_NAMED = 20  # failed trials to list
_QUANTILES = {"lowest": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "highest": 1.0}


def conclude(results: Results) -> str:
    """Write the figures and tables of a search; return the text to print."""
    store, asked, tried = results.store, results.asked, results.trials
    assert tried is not None
    metric, fresh = results.metric, asked["fresh_seeds"]
    diverged = results.runs.loc[results.runs["seed"].isin(fresh), "diverged"].any()
    worst = "; a diverged run ranks below all others" if diverged else ""
    text = (
        f"{_best(results)}\n"
        f"Scores: {metric.name} ({metric.help}), IQM over {len(fresh)} fresh seeds "
        f"[95 % interval]: none of them was used for selection. Better on: number of these "
        f"seeds on which the best settings beat, lose to and tie the defaults{worst}.\n\n"
        f"{_tried(tried, asked)}\n{_failed(tried)}{costs(store)}"
    )
    write_bytes(store.folder / "study.md", text.encode())
    written = [paths(store.folder)[0], store.folder / "study.md"]
    if results.study.options.figures:
        written += _figures(results, tried)
    return f"\n{text}\nresults: {' '.join(map(str, written))}"


def _figures(results: Results, tried: pd.DataFrame) -> list[Path]:
    metric, agents, figures = results.study.metric, results.agents, {}
    if tried["score"].notna().any():
        figures["trials"] = searched.trials(tried, metric, agents)
        names, scales = results.store.settings, linear(results.asked)
        figures["settings"] = searched.settings(tried, names, scales, metric, agents)
    seeds = len(results.asked["fresh_seeds"])
    figures["best"] = sensitivity.best(results.best, results.methods, metric, agents, seeds)
    written = [results.store.folder / f"{name}.png" for name in figures]
    for path, figure in zip(written, figures.values(), strict=True):
        to_matplotlib(figure, path)
    return written


def linear(asked: Mapping[str, Any]) -> set[str]:
    """Return the settings with a range on a linear scale."""
    spaces = [own for labels in asked["space"].values() for own in labels.values()]
    texts = [item for own in spaces for item in own.items()]
    return {name for name, text in texts if ":" in text and not text.endswith(":log")}


def _best(results: Results) -> str:
    header = ["best settings", "with fresh seeds", "by default", "better on"]
    cells = [
        [row.best, *map(format_estimate, (row.shown, row.default)), results.against_default(row)]
        if results.has_best(row)
        else [f"{row.env} {row.label}", "-", format_estimate(row.shown), "-"]
        for row in results.best
    ]
    return markdown([header, *cells])


def spread(tried: pd.DataFrame) -> list[list[str]]:
    """Return a header, and a row with the trials and score quantiles of every method."""
    header = ["", "trials", "different", "failed", *_QUANTILES]
    cells = []
    for (env, label), own in tried.groupby(["env", "replay"], sort=False):
        scores = own["score"].dropna()
        places = [
            number(float(scores.quantile(q))) if len(scores) else "-" for q in _QUANTILES.values()
        ]
        counts = [len(own), own["point"].nunique(), int(own["score"].isna().sum())]
        cells.append([f"{env} {label}", *map(str, counts), *places])
    return [header, *cells]


def budget(asked: Mapping[str, Any]) -> str:
    """Return a sentence on the budget of the search."""
    how = "at random" if asked["search"] == "random" else f"by {asked['search']}"
    first, last = asked["seeds"][0], asked["seeds"][-1]
    seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
    return f"{asked['trials']} trials of each method {how}, with {seeds}."


def failures(tried: pd.DataFrame) -> list[str]:
    """Return a line for each point of the first failed trials, and the number of further ones."""
    lost = tried[tried["failed"] != ""].drop_duplicates("point")
    lines = [f"{row.point}: {row.failed}" for row in lost.head(_MOST_NAMED).itertuples()]
    more = len(lost) - _MOST_NAMED
    return [*lines, f"and {more} more, in study.json"] if more > 0 else lines


def _tried(tried: pd.DataFrame, asked: Any) -> str:
    (_, *header), *cells = spread(tried)
    table = markdown([["trials, on the seeds used for selection", *header], *cells])
    return f"{table}\nBudget: {budget(asked)}\n" if cells else ""


def _failed(tried: pd.DataFrame) -> str:
    lines = [f"- {line}" for line in failures(tried)]
    return "\n".join(["Failed:", "", *lines, "", ""]) if lines else ""
