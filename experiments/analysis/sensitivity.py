"""Figures of a sweep: the score against each setting, and methods at their best and by default."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from experiments.analysis.axes import logarithmic
from experiments.analysis.primary import PrimaryMetric
from experiments.analysis.style import (
    INK,
    colour_and_dashes,
    make_figure,
    plain,
    save,
    styles_of,
    tidy,
    warn_of_few,
)
from experiments.analysis.tuned import Tuned, estimate

_MOST_LINES = 6  # in a panel, for each choice of the other settings


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
            told = [f"{_short(n)} {value_text(v)}" for n, v in zip(has, chosen, strict=True)]
            name = ", ".join([str(label), *told])
            known = rows[rows[setting].notna()]
            at = dict(iter(known.groupby(setting, sort=True)))
            drawn = tuple(at.values()) or (rows,)
            scores, lost = tuple(map(_of_seeds, drawn)), tuple(map(_diverged, drawn))
            found.append(Line(name, method, tuple(at), scores, lost))
    return found


def _of_seeds(rows: pd.DataFrame) -> np.ndarray:
    """Return a score for each seed: its mean over the settings that are not told apart."""
    return rows.groupby("seed")["score"].mean().to_numpy()


def _diverged(rows: pd.DataFrame) -> int:
    """Return how many seeds diverged with one of the settings that are not told apart."""
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
    names = swept(table, settings)
    if not names:
        return False
    envs = list(dict.fromkeys(table["env"]))
    figure = make_figure(0.6 + 6.0 * len(envs), 0.6 + 3.2 * len(names))
    panels = figure.subplots(len(names), len(envs), squeeze=False)
    for row, name in zip(panels, names, strict=True):
        others = [other for other in names if other != name]
        for axes, env in zip(row, envs, strict=True):
            drawn = lines(table[table["env"] == env], name, others)
            if any(line.values for line in drawn):
                _panel(axes, drawn)
                axes.set_xlabel(name, color=INK)
                axes.set_ylabel(metric(env).label("\n"), color=INK)
                axes.set_title(env, fontsize=10, color=INK)
            else:
                axes.set_visible(False)
    title = f"{plain(title)}: each setting, IQM over seeds with 95 % intervals"
    figure.suptitle(title, fontsize=11, color=INK)
    warn_of_few(figure, int(table.groupby("point")["seed"].nunique().min()))
    save(figure, path)
    return True


def values(drawn: Sequence[Line]) -> list[Any]:
    """Return all values of a setting that lines have, in order: numbers, then words."""
    return sorted({value for line in drawn for value in line.values}, key=_order)


def _panel(axes: Axes, drawn: Sequence[Line]) -> None:
    every = values(drawn)
    numeric = all(isinstance(value, (int, float)) for value in every)
    place = {value: float(value) if numeric else at for at, value in enumerate(every)}
    own = styles(drawn)
    spread = _spread(list(place.values()), len(drawn))
    log = numeric and logarithmic(every)
    crossed: list[tuple[float, float, str]] = []
    for number, line in enumerate(drawn):
        style = own[line.label]
        points = [estimate(scores) for scores in line.scores]
        if not line.values:
            axes.axhspan(points[0].low, points[0].high, color=style["color"], alpha=0.15, lw=0)
            axes.axhline(points[0].value, label=plain(f"{line.label}{lost_in(line, 0)}"), **style)
            continue
        shift = 0.0 if log else spread * (number - (len(drawn) - 1) / 2)
        x = [place[value] + shift for value in line.values]
        y = np.array([point.value for point in points])
        bars = np.abs([[p.low for p in points], [p.high for p in points]] - y)
        axes.errorbar(
            x, y, yerr=bars, label=plain(line.label), marker="o", markersize=4, capsize=2,
            elinewidth=1, **style,
        )  # fmt: skip
        found = zip(x, y, line.diverged, strict=True)
        crossed += [(*place, style["color"]) for *place, lost in found if lost]
    for number, (x, y, colour) in enumerate(crossed):
        label = "_" if number else "some seeds diverged"
        axes.plot([x], [y], marker="X", markersize=9, color=colour, linestyle="", label=label)
    if log:
        axes.set_xscale("log")
    axes.set_xticks(list(place.values()), [value_text(value) for value in every])
    axes.minorticks_off()
    tidy(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(_counted))
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


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
    return {
        line.label: level.get(line.label) or {**colour_and_dashes(number), "linewidth": 1.7}
        for number, line in enumerate(drawn)
    }


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
    envs = list(dict.fromkeys(row.env for row in rows))
    most = max(sum(row.env == env for row in rows) for env in envs)
    figure = make_figure(2.2 + 4.2 * len(envs), 1.4 + 0.5 * most)
    panels = figure.subplots(1, len(envs), squeeze=False)[0]
    styles = styles_of({row.label: methods[row.label] for row in rows})
    for axes, env in zip(panels, envs, strict=True):
        own = [row for row in rows if row.env == env]
        for at, row in enumerate(own):
            colour = styles[row.label]["color"]
            _bar(axes, at - 0.12, row.shown, colour, filled=True)
            if row.default is not None:
                _bar(axes, at + 0.12, row.default, colour, filled=False)
        axes.set_yticks(range(len(own)), [_told(row) for row in own])
        axes.set_ylim(len(own) - 0.5, -0.5)
        axes.set_xlabel(metric(env).label(), color=INK)
        axes.set_title(env, fontsize=10, color=INK)
        tidy(axes)
        axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
        axes.xaxis.set_major_formatter(FuncFormatter(_counted))
    figure.suptitle(f"{plain(title)}: at their best, and by default (hollow)", fontsize=11)
    warn_of_few(figure, seeds)
    save(figure, path)


def _told(row: Tuned) -> str:
    """Return a method's label, and below it how many of its seeds diverged, if any."""
    lost = {"at its best": row.shown, "by default": row.default}
    lines = [
        f"{each.diverged} of {each.seeds} diverged {kind}"
        for kind, each in lost.items()
        if each is not None and each.diverged
    ]
    return "\n".join([plain(row.label), *lines])


def _bar(axes: Axes, at: float, found: Any, colour: str, filled: bool) -> None:
    axes.plot([found.low, found.high], [at, at], color=colour, linewidth=1.6)
    face = colour if filled else "white"
    axes.plot([found.value], [at], marker="o", color=colour, markerfacecolor=face, linestyle="")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def value_text(value: Any) -> str:
    """Return a setting's value as figures show it."""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _counted(value: float, place: Any) -> str:
    """Return a tick's label."""
    del place
    return f"{value:,g}"


def _order(value: Any) -> tuple[bool, Any]:
    return isinstance(value, str), value
