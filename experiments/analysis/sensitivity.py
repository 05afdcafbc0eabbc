"""Figures of a sweep: the score against each setting, and methods at their best and by default."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.analysis import figures
from experiments.analysis.drawing import to_matplotlib
from experiments.analysis.figures import Axis, Figure, Interval, Panel, Style
from experiments.analysis.primary import PrimaryMetric
from experiments.analysis.style import COLOURS, DASHES, styles_of
from experiments.analysis.tuned import Tuned, estimate

_WIDE = 10.0  # largest over smallest value of a setting with a logarithmic axis
_MOST_LINES = 6  # in a panel, for each choice of the other settings


def logarithmic(values: Sequence[float]) -> bool:
    """Return whether values of a setting are so far apart that their axis is logarithmic."""
    return min(values) > 0 and max(values) / min(values) >= _WIDE


class Line(NamedTuple):
    """Scores against one setting."""

    label: str
    method: str
    values: tuple[Any, ...]  # of the setting; () where the method has none
    scores: tuple[np.ndarray, ...]  # [seeds] at each value; one, where it has none
    diverged: tuple[int, ...]  # of these seeds; their scores are among them as they are


def swept(table: pd.DataFrame, settings: Sequence[str]) -> list[str]:
    """Return the settings that have more than one value."""
    return [name for name in settings if table[name].dropna().nunique() > 1]


def lines(table: pd.DataFrame, setting: str, others: Sequence[str]) -> list[Line]:
    """Return what to draw of one task against a setting.

    Every choice of the other settings is a line while these are few; else a method is one line,
    each seed's mean over them.

    Args:
      table: of `tuned.scores`, of one task.
      setting: on the horizontal axis.
      others: the other settings with more than one value.
    """
    apart = _lines(table, setting, others)
    return apart if len(apart) <= _MOST_LINES else _lines(table, setting, ())


def _lines(table: pd.DataFrame, setting: str, others: Sequence[str]) -> list[Line]:
    found = []
    for label, own in table.groupby("replay", sort=False):
        method = str(own["method"].iloc[0])
        has = [name for name in others if own[name].nunique() > 1]
        parts = own.groupby(has, sort=False) if has else [((), own)]
        for chosen, rows in parts:
            apart = [f"{_short(n)} {value_text(v)}" for n, v in zip(has, chosen, strict=True)]
            name = ", ".join([str(label), *apart])
            known = rows[rows[setting].notna()]
            at = dict(iter(known.groupby(setting, sort=True)))
            drawn = tuple(at.values()) or (rows,)
            scores, lost = tuple(map(_of_seeds, drawn)), tuple(map(_diverged, drawn))
            found.append(Line(name, method, tuple(at), scores, lost))
    return found


def _of_seeds(rows: pd.DataFrame) -> np.ndarray:
    """Return a score for each seed, its mean over the settings of one line."""
    return rows.groupby("seed")["score"].mean().to_numpy()


def _diverged(rows: pd.DataFrame) -> int:
    """Return the number of seeds that diverged with one of the settings of one line."""
    return int((rows.groupby("seed")["diverged"].max() > 0).sum())


def sensitivity(
    table: pd.DataFrame,
    settings: Sequence[str],
    metric: Callable[[str], PrimaryMetric],
    path: str | os.PathLike,
    title: str,
) -> bool:
    """Draw the score against every setting that varies, a column for each task.

    Points are interquartile means over seeds, bars their 95 % bootstrap intervals; a band is a
    method without the setting. A cross is a point of which seeds diverged.

    Args:
      table: of `tuned.scores`.
      settings: columns.
      metric: of a task.
      path: of the PNG.
      title: of the figure.

    Returns:
      Whether there was anything to draw.
    """
    found = setting_panels(table, settings, metric)
    panels = [panel for own in found.values() for panel in own]
    if not panels:
        return False
    columns = table["env"].nunique()
    figure = Figure(
        f"{title}: each setting, IQM over seeds with 95 % intervals", panels,
        (0.6 + 6.0 * columns, 0.6 + 3.2 * len(found)), columns, legend="beside",
        seeds=int(table.groupby("point")["seed"].nunique().min()),
    )  # fmt: skip
    to_matplotlib(figure, path)
    return True


def setting_panels(
    table: pd.DataFrame, settings: Sequence[str], metric: Callable[[str], PrimaryMetric]
) -> dict[str, list[Panel | None]]:
    """Return the panels of every setting with more than one value, one for each task.

    Args:
      table: of `tuned.scores`.
      settings: columns.
      metric: of a task.

    Returns:
      None instead of a panel where no method on a task has the setting.
    """
    names, found = swept(table, settings), {}
    for name in names:
        others = [other for other in names if other != name]
        found[name] = []
        for env, own in table.groupby("env", sort=False):
            drawn = lines(own, name, others)
            some = any(line.values for line in drawn)
            label = metric(str(env)).label("\n")
            found[name].append(_panel(drawn, str(env), name, label) if some else None)
    return found


def values(drawn: Sequence[Line]) -> list[Any]:
    """Return all values of a setting that lines have, in order: numbers, then words."""
    return sorted({value for line in drawn for value in line.values}, key=_order)


def _panel(drawn: Sequence[Line], env: str, name: str, label: str) -> Panel:
    every = values(drawn)
    numeric = all(isinstance(value, (int, float)) for value in every)
    place = {value: float(value) if numeric else float(at) for at, value in enumerate(every)}
    log = numeric and logarithmic(every)
    own, ends = styles(drawn), [min(place.values()), max(place.values())]
    gap = 0.0 if log else _spread(list(place.values()), len(drawn))
    marks = []
    for number, line in enumerate(drawn):
        points = [estimate(scores) for scores in line.scores]
        low, y, high = np.array([(point.low, point.value, point.high) for point in points]).T
        if not line.values:
            low, y, high = (np.repeat(end, 2) for end in (low, y, high))
            text = f"{line.label}{lost_in(line, 0)}, without it"
            marks.append(
                figures.Line(line.label, ends, y, own[line.label], low, high, texts=[text] * 2)
            )
            continue
        x = np.array([place[value] for value in line.values]) + gap * (
            number - (len(drawn) - 1) / 2
        )
        marks.append(
            figures.Line(
                line.label, x, y, own[line.label], low, high, bars=True,
                texts=[f"{value_text(v)}{lost_in(line, at)}" for at, v in enumerate(line.values)],
                crossed=[at for at, lost in enumerate(line.diverged) if lost],
            )
        )  # fmt: skip
    ticks = [(place[value], value_text(value)) for value in every]
    return Panel(env, Axis(name, log=log, ticks=ticks), Axis(label), marks, height=320)


def lost_in(line: Line, at: int) -> str:
    """Return how many seeds of a point of a line diverged, to be put after its name; "": none."""
    seeds = len(line.scores[at])
    return f", {line.diverged[at]} of {seeds} seeds diverged" if line.diverged[at] else ""


def styles(drawn: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """Return a style for each line: its method's colour, if every method is one line."""
    methods = [line.method for line in drawn if line.values]
    if len(set(methods)) == len(methods):
        return styles_of({line.label: line.method for line in drawn})
    level = styles_of({line.label: line.method for line in drawn if not line.values})
    return {line.label: level.get(line.label) or _style(at) for at, line in enumerate(drawn)}


def _style(number: int) -> dict[str, Any]:
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes, "linewidth": 1.7}


def _spread(places: Sequence[float], count: int) -> float:
    """Return by how much lines are set apart, so that their bars do not hide one another."""
    gaps = np.diff(sorted(set(places)))
    return float(gaps.min()) * 0.12 / max(count, 1) if len(gaps) else 0.0


def best(
    rows: Sequence[Tuned],
    methods: Mapping[str, str],
    metric: Callable[[str], PrimaryMetric],
    path: str | os.PathLike,
    title: str,
    seeds: int,
) -> None:
    """Draw every method at its best, on seeds that had no say in that, and by default (hollow).

    Args:
      rows: of `tuned.tuned`.
      methods: the replay method behind each label.
      metric: of a task.
      path: of the PNG.
      title: of the figure.
      seeds: that are shown, to warn of few.
    """
    styles = styles_of({row.label: methods[row.label] for row in rows})
    tasks = {
        env: [row for row in rows if row.env == env] for env in dict.fromkeys(r.env for r in rows)
    }
    panels = [best_panel(own, styles, metric(env)) for env, own in tasks.items()]
    size = (2.2 + 4.2 * len(tasks), 1.4 + 0.5 * max(map(len, tasks.values())))
    title = f"{title}: at their best, and by default (hollow)"
    to_matplotlib(Figure(title, panels, size, len(panels), seeds=seeds), path)


def best_panel(
    rows: Sequence[Tuned],
    styles: Mapping[str, Style],
    metric: PrimaryMetric,
    described: Callable[[str], str] = str,
) -> Panel:
    """Return a panel of one task with every method at its best, and by default (hollow).

    Args:
      rows: of `tuned.tuned`, of one task.
      styles: by label.
      metric: of the task.
      described: the settings of a point in words.
    """
    marks = []
    for at, row in enumerate(rows):
        kinds = [(-0.12, row.shown, described(row.best)), (0.12, row.default, "by default")]
        marks += [
            Interval(
                row.label, at + shift, found.value, found.low, found.high, styles[row.label],
                hollow=shift > 0, text=text,
            )
            for shift, found, text in kinds
            if found is not None
        ]  # fmt: skip
    names = figures.rows([_label(row) for row in rows])
    height = max(240, 115 + 44 * len(rows))
    return Panel(rows[0].env, Axis(metric.label()), names, marks, height=height)


def _label(row: Tuned) -> str:
    """Return a method's label, and below it the number of its seeds that diverged, if any."""
    lost = {"at its best": row.shown, "by default": row.default}
    lines = [
        f"{each.diverged} of {each.seeds} diverged {kind}"
        for kind, each in lost.items()
        if each is not None and each.diverged
    ]
    return "\n".join([row.label, *lines])


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def value_text(value: Any) -> str:
    """Return a setting's value as figures show it."""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _order(value: Any) -> tuple[bool, Any]:
    return isinstance(value, str), value
