"""Figures of a search: scores of trials in their order, and against every setting.

Tables have a row for each trial. Columns are env, replay, method, trial, point, score (NaN if the
trial failed), and the settings (empty for methods without the setting). `metric` returns the
primary metric of a task, and `described` the settings of a point in words.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.figures.elements import Axis, Figure, Line, Panel, Points, Style
from experiments.figures.sensitivity import Described, Metric, logarithmic, value_text
from experiments.figures.style import styles_of
from experiments.statistics.primary import PrimaryMetric


def trials(table: pd.DataFrame, metric: Metric, title: str, described: Described = str) -> Figure:
    """Return a panel for each task with the score of every trial and the best score so far."""
    styles, panels = _styles(table), []
    for env, rows in table.groupby("env", sort=False):
        primary, marks = metric(str(env)), []
        for label, own in rows.groupby("replay", sort=False):
            scores = own["score"]
            best = scores.cummax() if primary.higher_is_better else scores.cummin()
            x, style = own["trial"].to_numpy() + 1, styles[str(label)]
            line = Line(str(label), x, best.ffill(), style, steps=True, note="best so far")
            marks += [line, _points(own, x, style, described, named=False)]
        y = Axis(primary.label("\n"))
        panels.append(Panel(str(env), Axis("trial", whole=True), y, marks, height=320))
    title = f"{title}: scores on the seeds that select (dots), and the best so far"
    size = (1.4 + 6.4 * len(panels), 4.2)
    return Figure(title, panels, size, len(panels), legend="beside")


def settings(
    table: pd.DataFrame,
    names: Sequence[str],
    linear: Collection[str],
    metric: Metric,
    title: str,
    described: Described = str,
) -> Figure:
    """Return scores of trials against settings, with a row per setting and a column per task."""
    styles, tasks = _styles(table), list(table.groupby("env", sort=False))
    panels = [
        _against(rows, str(env), name, name in linear, metric(str(env)), styles, described)
        for name in names
        for env, rows in tasks
    ]
    size = (1.4 + 5.4 * len(tasks), 0.6 + 3.2 * len(names))
    title = f"{title}: every trial, the best ringed"
    return Figure(title, panels, size, len(tasks), legend="beside")


def _against(
    table: pd.DataFrame,
    env: str,
    name: str,
    linear: bool,
    metric: PrimaryMetric,
    styles: dict[str, dict[str, Any]],
    described: Described,
) -> Panel | None:
    own = table[table[name].notna() & table["score"].notna()]
    if own.empty:
        return None
    axis, place = _places(name, list(own[name]), linear)
    marks = []
    for label, part in own.groupby("replay", sort=False):
        x, style = [place(value) for value in part[name]], styles[str(label)]
        scores = part["score"].to_numpy()
        at = int(scores.argmax() if metric.higher_is_better else scores.argmin())
        marks.append(_points(part, x, style, described, opacity=0.6))
        marks.append(_points(part.iloc[[at]], [x[at]], style, described, ring=True, named=False))
    return Panel(env, axis, Axis(metric.label("\n")), marks, height=320)


def _points(part: pd.DataFrame, x: Any, style: Style, described: Described, **more: Any) -> Points:
    texts = [
        "" if math.isnan(score) else f"{score:.4g}, trial {trial + 1}: {described(point)}"
        for score, trial, point in zip(part["score"], part["trial"], part["point"], strict=True)
    ]
    return Points(str(part["replay"].iloc[0]), x, part["score"], style, texts, **more)


def _styles(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return styles_of(dict(zip(table["replay"], table["method"], strict=True)))


def _places(name: str, values: Sequence[Any], linear: bool) -> tuple[Axis, Callable[[Any], float]]:
    """Return the horizontal axis of a setting, and a function from values to positions on it."""
    if all(isinstance(value, (int, float, np.number)) for value in values):
        return Axis(name, log=not linear and logarithmic(values)), float
    every = sorted(set(map(value_text, values)))
    ticks = tuple((float(at), text) for at, text in enumerate(every))
    return Axis(name, ticks=ticks), lambda value: float(every.index(value_text(value)))
