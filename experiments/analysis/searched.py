"""Figures of a search: scores as they were tried, and against every setting."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from experiments.analysis.axes import logarithmic
from experiments.analysis.primary import PrimaryMetric
from experiments.analysis.style import INK, make_figure, plain, save, styles_of, tidy


def trials(
    table: pd.DataFrame,
    metric: Callable[[str], PrimaryMetric],
    path: str | os.PathLike,
    title: str,
) -> None:
    """Draw the score of every trial, and the best so far, of each method; a panel for each task.

    Args:
      table: columns env, replay, method, trial, score; NaN where a trial failed.
      metric: of a task.
      path: of the PNG.
      title: of the figure.
    """
    envs = list(dict.fromkeys(table["env"]))
    figure = make_figure(1.4 + 6.4 * len(envs), 4.2)
    panels = figure.subplots(1, len(envs), squeeze=False)[0]
    styles = _styles(table)
    for axes, env in zip(panels, envs, strict=True):
        higher = metric(env).higher_is_better
        for label, own in table[table["env"] == env].groupby("replay", sort=False):
            style, scores = styles[str(label)], own["score"]
            best = scores.cummax() if higher else scores.cummin()
            axes.plot(own["trial"] + 1, scores, **_dots(style))
            line = {name: style[name] for name in ("color", "linestyle", "linewidth")}
            axes.step(own["trial"] + 1, best.ffill(), where="post", label=plain(str(label)), **line)
        axes.set_xlabel("trial", color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _finish(axes, env, metric(env))
    figure.suptitle(
        f"{plain(title)}: scores on the seeds that choose (dots), and the best so far", fontsize=11
    )
    save(figure, path)


def settings(
    table: pd.DataFrame,
    names: Sequence[str],
    linear: Collection[str],
    metric: Callable[[str], PrimaryMetric],
    path: str | os.PathLike,
    title: str,
) -> None:
    """Draw the score of every trial against each setting; a row for each, a column for each task.

    Args:
      table: as of `trials`, and a column for every setting, empty where a method has none.
      names: of the settings.
      linear: those that are shown on a linear scale, however wide they are.
      metric: of a task.
      path: of the PNG.
      title: of the figure.
    """
    envs = list(dict.fromkeys(table["env"]))
    figure = make_figure(1.4 + 5.4 * len(envs), 0.6 + 3.2 * len(names))
    panels = figure.subplots(len(names), len(envs), squeeze=False)
    styles = _styles(table)
    for row, name in zip(panels, names, strict=True):
        for axes, env in zip(row, envs, strict=True):
            own = table[(table["env"] == env) & table[name].notna()]
            if own.empty:
                axes.set_visible(False)
                continue
            place = _places(axes, list(own[name]), name in linear)
            for label, part in own.groupby("replay", sort=False):
                at = [place(value) for value in part[name]]
                dots = _dots(styles[str(label)], 0.6)
                axes.plot(at, part["score"], label=plain(str(label)), **dots)
                scores = part["score"].dropna()
                if scores.empty:
                    continue
                best = scores.idxmax() if metric(env).higher_is_better else scores.idxmin()
                found = part.loc[[best]]
                ring = {"markerfacecolor": "none", "markersize": 11, "alpha": 1.0, "label": None}
                axes.plot([place(v) for v in found[name]], found["score"], **dots | ring)
            axes.set_xlabel(name, color=INK)
            _finish(axes, env, metric(env))
    figure.suptitle(f"{plain(title)}: every trial, the best ringed", fontsize=11)
    save(figure, path)


def _styles(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return styles_of(dict(zip(table["replay"], table["method"], strict=True)))


def _dots(style: Mapping[str, Any], alpha: float = 0.45) -> dict[str, Any]:
    return {
        "color": style["color"], "marker": "o", "markersize": 4.5, "linestyle": "", "alpha": alpha
    }  # fmt: skip


def _places(axes: Axes, values: Sequence[Any], linear: bool) -> Callable[[Any], float]:
    """Label the horizontal axis for a setting's values; return where one stands."""
    if all(isinstance(value, (int, float, np.number)) for value in values):
        if not linear and logarithmic(values):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.minorticks_off()
        return float
    every = sorted(set(map(str, values)))
    axes.set_xticks(range(len(every)), [plain(value) for value in every])
    return lambda value: float(every.index(str(value)))


def _finish(axes: Axes, env: str, metric: PrimaryMetric) -> None:
    axes.set_ylabel(metric.label("\n"), color=INK)
    axes.set_title(env, fontsize=10, color=INK)
    tidy(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
