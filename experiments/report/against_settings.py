"""Sections of a study: scores against settings, and the trials of a search."""

from dataclasses import replace
from typing import Any

import pandas as pd

from experiments.figures import searched, sensitivity
from experiments.figures.elements import Figure
from experiments.report import plots
from experiments.report.blocks import Lines, Plots, Section, Table
from experiments.report.swept import Swept
from experiments.studies import search_report

_MOST_NAMED = 20  # failed trials


def section(swept: Swept) -> Section | None:
    """Return the score against every setting with more than one value, a plot for each task."""
    drawn = sensitivity.sensitivity(swept.table, swept.store.settings, swept.study.metric, "")
    if drawn is None:
        return None
    intro = (
        f"{swept.metric.name} against each setting, over all seeds: IQM with 95 % bootstrap "
        "intervals. Every choice of the other settings is a line; where these are many, a method "
        "is one line, averaged over them. A level band is a method without the setting. A cross is "
        "a point with diverged seeds: their scores are in it, but select nothing."
    )
    return Section("settings-swept", "Sensitivity to settings", intro, _by_setting(drawn, swept))


def tried(swept: Swept) -> Section | None:
    """Return the score of every trial with the best so far, and how the scores are spread."""
    if swept.tried is None or swept.tried.empty:
        return None
    header, *cells = search_report.spread(swept.tried)
    several = len(swept.envs) > 1
    rows = [[name if several else name.partition(" ")[2], *rest] for name, *rest in cells]
    blocks: list[Any] = [Table([header, *rows])]
    if not (scored := _scored(swept)).empty:
        drawn = searched.trials(scored, swept.study.metric, "", swept.point_settings)
        blocks.append(plots.block(drawn.panels))
    lost = swept.tried[swept.tried["failed"] != ""].drop_duplicates("point")
    lines = [f"{row.point}: {row.failed}" for row in lost.itertuples()]
    if len(lines) > _MOST_NAMED:
        lines = [*lines[:_MOST_NAMED], f"and {len(lines) - _MOST_NAMED} more, in study.json"]
    if lines:
        blocks.append(Lines([f"Failed: {line}" for line in lines]))
    budget = search_report.budget(swept.store.facts["search"]["asked"])
    intro = (
        f"{budget} A dot is the score of a trial, the IQM over these seeds; the line is the best "
        "so far."
    )
    return Section("trials", "Trials", intro, blocks)


def searched_settings(swept: Swept) -> Section | None:
    """Return the score of every trial against each setting, a plot for each task."""
    if swept.tried is None:
        return None
    drawn = searched.settings(
        _scored(swept), swept.settings, search_report.linear(swept.store), swept.study.metric, "",
        swept.point_settings,
    )  # fmt: skip
    if not any(drawn.panels):
        return None
    intro = (
        "Every trial's score against each of its settings, on the seeds that select; each "
        "method's best is ringed. All settings vary at once, so that one of them explains only a "
        "part of the spread."
    )
    return Section("settings-swept", "Scores against settings", intro, _by_setting(drawn, swept))


def _by_setting(drawn: Figure, swept: Swept) -> list[Plots]:
    """Return the panels of a figure, a block for each setting if there are several tasks."""
    panels = [panel for panel in drawn.panels if panel is not None]
    if len(swept.envs) == 1:
        return [plots.block([replace(panel, title=panel.x.label) for panel in panels])]
    names = dict.fromkeys(panel.x.label for panel in panels)
    return [plots.block([p for p in panels if p.x.label == name], name) for name in names]


def _scored(swept: Swept) -> pd.DataFrame:
    """Return the trials of the tasks with a score."""
    assert swept.tried is not None
    envs = swept.tried.loc[swept.tried["score"].notna(), "env"]
    return swept.tried[swept.tried["env"].isin(set(envs))]
