"""Figures of a grid: scores against each setting, and methods with best and default settings.

Tables are those of `tuned.scores`. `metric` returns the primary metric of a task, and `described`
the settings of a point in words.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.figures import elements
from experiments.figures.elements import Axis, Figure, Interval, Panel, Style
from experiments.figures.style import COLOURS, DASHES, styles_of
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.tuned import Tuned, estimate

_MOST_LINES = 6  # largest number of lines in a panel, one per choice of the other settings
_WIDE = 10.0  # ratio of largest to smallest value from which an axis is logarithmic

Metric = Callable[[str], PrimaryMetric]  # task -> primary metric
Described = Callable[[str], str]  # id of a point -> its settings in words


class Line(NamedTuple):
    """Scores against one setting."""

    label: str
    method: str
    values: tuple[Any, ...]  # values of the setting; () if the method lacks it
    scores: tuple[np.ndarray, ...]  # [seeds] for each value; one entry if `values` is ()
    diverged: tuple[int, ...]  # number of diverged seeds for each value, included in `scores`


def swept(table: pd.DataFrame, settings: Sequence[str]) -> list[str]:
    """Return the settings that have more than one value."""
    return [name for name in settings if table[name].dropna().nunique() > 1]


def logarithmic(values: Sequence[float]) -> bool:
    """Return whether the values of a setting span a range that needs a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) >= _WIDE


def sensitivity(
    table: pd.DataFrame, settings: Sequence[str], metric: Metric, title: str
) -> Figure | None:
    """Return the score against every setting with more than one value, with a column per task.

    Points are interquartile means over seeds with 95 % bootstrap intervals. Bands are methods
    without the setting. Crosses are points with diverged seeds. The result is None if every
    setting has a single value.
    """
    panels: list[Panel | None] = []
    names, envs = swept(table, settings), dict(list(table.groupby("env", sort=False)))
    for name in names:
        others = [other for other in names if other != name]
        for env, own in envs.items():
            drawn = lines(own, name, others)
            some = any(line.values for line in drawn)
            panels.append(_panel(drawn, str(env), name, metric(str(env))) if some else None)
    size = (0.6 + 6.0 * len(envs), 0.6 + 3.2 * len(names))
    seeds = int(table.groupby("point")["seed"].nunique().min())
    title = f"{title}: each setting, IQM over seeds with 95 % intervals"
    figure = Figure(title, panels, size, len(envs), legend="beside", seeds=seeds)
    return figure if any(panels) else None


def lines(table: pd.DataFrame, setting: str, others: Sequence[str]) -> list[Line]:
    """Return the lines of one task against a setting.

    Each combination of a method and values of the other settings is a line. If that makes more
    than six lines, each method is one line, with scores of each seed averaged over other settings.
    """
    apart = _lines(table, setting, others)
    return apart if len(apart) <= _MOST_LINES else _lines(table, setting, ())


def lost_in(line: Line, at: int) -> str:
    """Return the number of diverged seeds at a point of a line in words, or ""."""
    seeds = len(line.scores[at])
    return f", {line.diverged[at]} of {seeds} seeds diverged" if line.diverged[at] else ""


def best(
    rows: Sequence[Tuned],
    methods: Mapping[str, str],
    metric: Metric,
    title: str,
    seeds: int,
    described: Described = str,
) -> Figure:
    """Return every method with its best settings, on held-out seeds, and its defaults (hollow)."""
    styles = styles_of({row.label: methods[row.label] for row in rows})
    tasks: dict[str, list[Tuned]] = {}
    for row in rows:
        tasks.setdefault(row.env, []).append(row)
    panels = [_best(own, styles, metric(env), described) for env, own in tasks.items()]
    size = (2.2 + 4.2 * len(tasks), 1.4 + 0.5 * max(map(len, tasks.values())))
    title = f"{title}: at their best, and by default (hollow)"
    return Figure(title, panels, size, len(panels), seeds=seeds)


def value_text(value: Any) -> str:
    """Return a setting's value in the format of the figures."""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _lines(table: pd.DataFrame, setting: str, others: Sequence[str]) -> list[Line]:
    found = []
    for label, own in table.groupby("replay", sort=False):
        has = [name for name in others if own[name].nunique() > 1]
        for chosen, rows in own.groupby(has, sort=False) if has else [((), own)]:
            pairs = zip(has, chosen, strict=True)
            words = [f"{name.rpartition('.')[2]} {value_text(value)}" for name, value in pairs]
            at = dict(list(rows[rows[setting].notna()].groupby(setting, sort=True)))
            drawn = [part.groupby("seed") for part in at.values() or [rows]]
            found.append(
                Line(
                    ", ".join([str(label), *words]), str(own["method"].iloc[0]), tuple(at),
                    tuple(seeds["score"].mean().to_numpy() for seeds in drawn),
                    tuple(int((seeds["diverged"].max() > 0).sum()) for seeds in drawn),
                )
            )  # fmt: skip
    return found


def _panel(drawn: Sequence[Line], env: str, name: str, metric: PrimaryMetric) -> Panel:
    every = sorted(
        {v for line in drawn for v in line.values}, key=lambda v: (isinstance(v, str), v)
    )
    numeric = all(isinstance(value, (int, float)) for value in every)
    place = {value: float(value) if numeric else float(at) for at, value in enumerate(every)}
    log = numeric and logarithmic(every)
    styles, ends = _styles(drawn), [min(place.values()), max(place.values())]
    gaps = np.diff(sorted(set(place.values())))  # lines are offset by a part of it
    shift = 0.0 if log or not len(gaps) else float(gaps.min()) * 0.12 / len(drawn)
    marks = []
    for number, line in enumerate(drawn):
        points = [estimate(scores) for scores in line.scores]
        low, y, high = np.array([(point.low, point.value, point.high) for point in points]).T
        if line.values:
            x = np.array([place[v] for v in line.values]) + shift * (number - (len(drawn) - 1) / 2)
            texts = [f"{value_text(v)}{lost_in(line, at)}" for at, v in enumerate(line.values)]
            crossed = [at for at, lost in enumerate(line.diverged) if lost]
        else:
            x, low, y, high = ends, *(np.repeat(end, 2) for end in (low, y, high))
            texts, crossed = [f"{line.label}{lost_in(line, 0)}, without it"] * 2, ()
        marks.append(
            elements.Line(
                line.label, x, y, styles[line.label], low, high, bars=bool(line.values),
                texts=texts, crossed=crossed,
            )
        )  # fmt: skip
    ticks = [(place[value], value_text(value)) for value in every]
    y_axis = Axis(metric.label("\n"))
    return Panel(env, Axis(name, log=log, ticks=ticks), y_axis, marks, height=320)


def _styles(drawn: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """Return a style for each line, with its method's colour if every method is one line."""
    methods = [line.method for line in drawn if line.values]
    if len(set(methods)) == len(methods):
        return styles_of({line.label: line.method for line in drawn})
    level = styles_of({line.label: line.method for line in drawn if not line.values})
    return {line.label: level.get(line.label) or _style(at) for at, line in enumerate(drawn)}


def _style(number: int) -> dict[str, Any]:
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes, "linewidth": 1.7}


def _best(
    rows: Sequence[Tuned], styles: Mapping[str, Style], metric: PrimaryMetric, described: Described
) -> Panel:
    marks, labels = [], []
    for at, row in enumerate(rows):
        labels.append(row.label)
        for shift, found, kind, text in (
            (-0.12, row.shown, "at its best", described(row.best)),
            (0.12, row.default, "by default", "by default"),
        ):
            if found is None:
                continue
            hollow, style = shift > 0, styles[row.label]
            marks.append(Interval(row.label, at + shift, *found[:3], style, hollow, text=text))
            if found.diverged:
                labels[-1] += f"\n{found.diverged} of {found.seeds} diverged {kind}"
    height = max(240, 115 + 44 * len(rows))
    return Panel(rows[0].env, Axis(metric.label()), elements.rows(labels), marks, height=height)
