"""Figures of a grid: scores against each setting, and of methods at best and default settings.

Tables come from `tuned.scores`. `metric` returns the primary metric of a task.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.drawing import (
    Panel,
    draw_interval,
    draw_legend,
    finish,
    finish_rows,
)
from experiments.figures.style import COLOURS, DASHES, Styles, plain, styles_of
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.tuned import Tuned, estimate, swept

_MOST_LINES = 6  # largest number of lines in a panel, one per choice of the other settings
_WIDE = 10.0  # ratio of largest to smallest value from which an axis is logarithmic

Metric = Callable[[str], PrimaryMetric]  # task -> primary metric


class Line(NamedTuple):
    """Scores against one setting."""

    label: str
    method: str
    values: tuple[Any, ...]  # values of the setting; () if the method lacks it
    scores: tuple[np.ndarray, ...]  # [seeds] for each value; one entry if `values` is ()
    diverged: tuple[int, ...]  # number of diverged seeds for each value, included in `scores`


def sensitivity_panels(
    table: pd.DataFrame, settings: Sequence[str], metric: Metric
) -> dict[str, list[Panel | None]]:
    """Return, for every setting with several values, a panel per task with scores against it.

    Settings that no method of any task has are left out; a panel is None if no method of the task
    has the setting.
    """
    names, envs = swept(table, settings), dict(list(table.groupby("env", sort=False)))
    found: dict[str, list[Panel | None]] = {}
    for name in names:
        others = [other for other in names if other != name]
        row: list[Panel | None] = []
        for env, own in envs.items():
            drawn, primary = lines(own, name, others), metric(str(env))
            panel = partial(draw_sensitivity, drawn=drawn, env=str(env), name=name, metric=primary)
            row.append(panel if any(line.values for line in drawn) else None)
        if any(row):
            found[name] = row
    return found


def best_panels(
    rows: Sequence[Tuned], methods: Mapping[str, str], metric: Metric
) -> dict[str, Panel]:
    """Return a panel for each task with the best and default settings of its methods."""
    styles = styles_of({row.label: methods[row.label] for row in rows})
    tasks: dict[str, list[Tuned]] = {}
    for row in rows:
        tasks.setdefault(row.env, []).append(row)
    return {
        env: partial(draw_best, rows=own, styles=styles, metric=metric(env))
        for env, own in tasks.items()
    }


def lines(table: pd.DataFrame, setting: str, others: Sequence[str]) -> list[Line]:
    """Return the lines of one task against a setting.

    Each combination of a method and values of the other settings is a line. If that makes more
    than six lines, each method is one line, with scores of each seed averaged over other settings.
    """
    apart = _lines(table, setting, others)
    return apart if len(apart) <= _MOST_LINES else _lines(table, setting, ())


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


def draw_sensitivity(
    axes: Axes, drawn: Sequence[Line], env: str, name: str, metric: PrimaryMetric
) -> None:
    """Draw scores against one setting on one task.

    Points are interquartile means over seeds with 95 % bootstrap intervals. Horizontal lines with
    bands are methods without the setting. Crosses are points with diverged seeds.
    """
    every = sorted(
        {v for line in drawn for v in line.values}, key=lambda v: (isinstance(v, str), v)
    )
    numeric = all(isinstance(value, (int, float)) for value in every)
    place = {value: float(value) if numeric else float(at) for at, value in enumerate(every)}
    log = numeric and min(every) > 0 and max(every) / min(every) >= _WIDE
    styles, ends = _styles(drawn), [min(place.values()), max(place.values())]
    gaps = np.diff(sorted(set(place.values())))  # lines are offset by a part of it
    shift = 0.0 if log or not len(gaps) else float(gaps.min()) * 0.12 / len(drawn)
    for number, line in enumerate(drawn):
        points = [estimate(scores) for scores in line.scores]
        low, y, high = np.array([(point.low, point.value, point.high) for point in points]).T
        style, label = styles[line.label], plain(line.label)
        if not line.values:
            axes.plot(ends, np.repeat(y, 2), label=label, **style)
            axes.fill_between(ends, low, high, color=style["color"], alpha=0.15, linewidth=0)
            continue
        x = np.array([place[v] for v in line.values]) + shift * (number - (len(drawn) - 1) / 2)
        bars = {"marker": "o", "markersize": 4, "capsize": 2, "elinewidth": 1}
        axes.errorbar(x, y, yerr=np.abs([low - y, high - y]), label=label, **bars, **style)
        if lost := [at for at, seeds in enumerate(line.diverged) if seeds]:
            cross = {"marker": "X", "markersize": 9, "color": style["color"], "linestyle": ""}
            axes.plot(x[lost], y[lost], label="some seeds diverged", **cross)
    if log:
        axes.set_xscale("log")
    finish(axes, env, name, metric.label("\n"))
    axes.set_xticks([*place.values()], [plain(value_text(value)) for value in every])
    draw_legend(axes)


def draw_best(axes: Axes, rows: Sequence[Tuned], styles: Styles, metric: PrimaryMetric) -> None:
    """Draw the scores of a task's methods with the best and with default settings (hollow)."""
    labels = []
    for place, row in enumerate(rows):
        labels.append(row.label)
        for shift, score, kind in (
            (-0.12, row.shown, "at its best"),
            (0.12, row.default, "by default"),
        ):
            if score is None:
                continue
            draw_interval(axes, place + shift, score[:3], styles[row.label], hollow=shift > 0)
            if score.diverged:
                labels[-1] += f"\n{score.diverged} of {score.seeds} diverged {kind}"
    finish_rows(axes, rows[0].env, metric.label(), labels)


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
