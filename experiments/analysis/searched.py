"""Figures of a search: scores in the order of the trials, and against every setting."""

import math
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.drawing import to_matplotlib
from experiments.analysis.figures import Axis, Figure, Line, Panel, Points, Style
from experiments.analysis.primary import PrimaryMetric
from experiments.analysis.sensitivity import logarithmic, value_text
from experiments.analysis.style import styles_of

Metric = Callable[[str], PrimaryMetric]  # of a task
Described = Callable[[str], str]  # of a point


def trials(table: pd.DataFrame, metric: Metric, path: str | os.PathLike, title: str) -> None:
    """Draw the score of every trial, and the best so far, of each method; a panel for each task.

    Args:
      table: columns env, replay, method, trial, point, score; NaN where a trial failed.
      metric: of a task.
      path: of the PNG.
      title: of the figure.
    """
    panels = trial_panels(table, metric)
    title = f"{title}: scores on the seeds that select (dots), and the best so far"
    size = (1.4 + 6.4 * len(panels), 4.2)
    to_matplotlib(Figure(title, panels, size, len(panels), legend="beside"), path)


def settings(
    table: pd.DataFrame,
    names: Sequence[str],
    linear: Collection[str],
    metric: Metric,
    path: str | os.PathLike,
    title: str,
) -> None:
    """Draw the score of every trial against each setting; a row for each, a column for each task.

    Args:
      table: as of `trials`, and a column for every setting, empty where a method has none.
      names: of the settings.
      linear: names of the settings on a linear scale.
      metric: of a task.
      path: of the PNG.
      title: of the figure.
    """
    found = setting_panels(table, names, linear, metric)
    panels = [panel for own in found.values() for panel in own]
    columns = table["env"].nunique()
    size = (1.4 + 5.4 * columns, 0.6 + 3.2 * len(found))
    title = f"{title}: every trial, the best ringed"
    to_matplotlib(Figure(title, panels, size, columns, legend="beside"), path)


def trial_panels(table: pd.DataFrame, metric: Metric, described: Described = str) -> list[Panel]:
    """Return a panel for each task with the score of every trial, and the best so far.

    Args:
      table: as of `trials`.
      metric: of a task.
      described: the settings of a point in words.
    """
    styles, panels = _styles(table), []
    for env, rows in table.groupby("env", sort=False):
        marks: list[Line | Points] = []
        for label, own in rows.groupby("replay", sort=False):
            scores = own["score"]
            best = scores.cummax() if metric(str(env)).higher_is_better else scores.cummin()
            x, style = own["trial"].to_numpy() + 1, styles[str(label)]
            line = Line(str(label), x, best.ffill(), style, steps=True, note="best so far")
            marks += [line, _points(own, x, style, described)]
        x = Axis("trial", whole=True)
        panels.append(Panel(str(env), x, Axis(metric(str(env)).label("\n")), marks, height=320))
    return panels


def setting_panels(
    table: pd.DataFrame,
    names: Sequence[str],
    linear: Collection[str],
    metric: Metric,
    described: Described = str,
) -> dict[str, list[Panel | None]]:
    """Return a panel for each task by setting, with the best trial of each method ringed.

    Args:
      table: as of `settings`.
      names: of the settings.
      linear: names of the settings on a linear scale.
      metric: of a task.
      described: the settings of a point in words.

    Returns:
      None instead of a panel where no scored trial of a task has the setting.
    """
    return {
        name: [
            _against(rows, str(env), name, name in linear, metric(str(env)), described)
            for env, rows in table.groupby("env", sort=False)
        ]
        for name in names
    }


def _against(
    table: pd.DataFrame,
    env: str,
    name: str,
    linear: bool,
    metric: PrimaryMetric,
    described: Described,
) -> Panel | None:
    own = table[table[name].notna() & table["score"].notna()]
    if own.empty:
        return None
    axis, place = places(name, list(own[name]), linear)
    styles, marks = _styles(table), []
    for label, part in own.groupby("replay", sort=False):
        x, style = [place(value) for value in part[name]], styles[str(label)]
        marks.append(_points(part, x, style, described, opacity=0.6, named=True))
        scores = part["score"].to_numpy()
        best = int(scores.argmax() if metric.higher_is_better else scores.argmin())
        one = part.iloc[[best]]
        marks.append(_points(one, [x[best]], style, described, opacity=1.0, ring=True))
    return Panel(env, axis, Axis(metric.label("\n")), marks, height=320)


def _points(part: pd.DataFrame, x: Any, style: Style, described: Described, **more: Any) -> Points:
    texts = [
        "" if math.isnan(score) else f"{score:.4g}, trial {trial + 1}: {described(point)}"
        for score, trial, point in zip(part["score"], part["trial"], part["point"], strict=True)
    ]
    label = str(part["replay"].iloc[0])
    return Points(label, x, part["score"], style, texts, **({"named": False} | more))


def _styles(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return styles_of(dict(zip(table["replay"], table["method"], strict=True)))


def places(name: str, values: Sequence[Any], linear: bool) -> tuple[Axis, Callable[[Any], float]]:
    """Return the horizontal axis of a setting, and the place of a value on it."""
    if all(isinstance(value, (int, float, np.number)) for value in values):
        return Axis(name, log=not linear and logarithmic(values)), float
    every = sorted(set(map(value_text, values)))
    ticks = tuple((float(at), text) for at, text in enumerate(every))
    return Axis(name, ticks=ticks), lambda value: float(every.index(value_text(value)))
