"""Learning curves of several runs in one figure."""

import os
import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.analysis.bootstrap import bootstrap_interval, iqm
from experiments.analysis.statistics import curves, diverged
from experiments.analysis.style import (
    FAINT,
    INK,
    count_steps,
    make_figure,
    marks,
    save,
    styles_of,
    tidy,
    warn_of_few,
)

_BANDS = 4  # more than so many in one panel hide one another


def learning_curves(
    frames: Mapping[str, pd.DataFrame],
    path: str | os.PathLike,
    title: str,
    threshold: float | None = None,
    methods: Mapping[str, str] | None = None,
) -> None:
    """Plot learning curves into a PNG 1200 pixels wide: one panel, or one for each of many labels.

    A line is the interquartile mean over seeds (the mean for fewer than four), the band around it
    the 95 % bootstrap interval (Agarwal et al. 2021). In panels of their own, labels stand beside
    the first one.

    Args:
      frames: metrics by label, with columns seed, step and eval_return.
      path: where to write the PNG.
      title: one line.
      threshold: the return that counts as solved; plotted as a thin line.
      methods: the replay method behind each label, for its colour; None: the label is its name.
    """
    styles = styles_of(methods or {label: label for label in frames})
    if len(frames) <= _BANDS:
        figure = make_figure(8, 5, dpi=150)
        axes = figure.add_subplot()
        lines = _plot_panel(axes, frames, styles, threshold)
        _style(axes, title, _subtitle(frames), lines)
        _label_curves(axes, lines)
    else:
        figure = _panels(frames, styles, threshold, f"{title}\n", _subtitle(frames))
    if len(frames) > 1:
        warn_of_few(figure, _seeds(frames)[0])
    save(figure, path)


def _panels(
    frames: Mapping[str, pd.DataFrame],
    styles: Mapping[str, Mapping[str, Any]],
    threshold: float | None,
    title: str,
    subtitle: str,
) -> Figure:
    """Plot the first label's curve in every panel, and one of the others."""
    first, *others = frames
    columns = min(4, len(others))
    rows = -(-len(others) // columns)
    figure = make_figure(12, 0.9 + 2.6 * rows)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK)
    figure.text(0.01, 1 - 0.42 / (0.9 + 2.6 * rows), subtitle, fontsize=9.5, color=FAINT)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, axes in enumerate(grid.ravel()):
        if number >= len(others):
            axes.set_axis_off()
            continue
        label = others[number]
        both = {each: frames[each] for each in (first, label)}
        lines = _plot_panel(axes, both, styles, threshold)
        _finish(axes, lines, 3)
        axes.set_title(label, loc="left", fontsize=11, color=styles[label]["color"])
        if number % columns == 0:
            axes.set_ylabel(_RETURN, color=INK, fontsize=9.5)
        if number + columns >= len(others):
            axes.set_xlabel(_STEPS, color=INK, fontsize=9.5)
            axes.tick_params(labelbottom=True)
    axes = grid[0, 0]
    axes.legend([axes.get_lines()[0]], [first], frameon=False, fontsize=9, loc="best")
    return figure


def _plot_panel(
    axes: Axes,
    frames: Mapping[str, pd.DataFrame],
    styles: Mapping[str, Mapping[str, Any]],
    threshold: float | None,
) -> list[Line2D]:
    lines = [_plot_curve(axes, label, frame, styles[label]) for label, frame in frames.items()]
    if threshold is not None:
        axes.axhline(threshold, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        _label_threshold(axes, threshold)
    return lines


def _plot_curve(axes: Axes, label: str, frame: pd.DataFrame, style: Mapping[str, Any]) -> Line2D:
    returns = curves(frame).dropna()
    steps, values = returns.index.to_numpy(), returns.to_numpy().T
    (line,) = axes.plot(steps, iqm(values), label=label, **style, **marks(len(steps)))
    if len(values) > 1:
        low, high = bootstrap_interval(values)
        if len(steps) == 1:
            axes.vlines(steps, low, high, color=style["color"], alpha=0.4, linewidth=4, zorder=2)
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0, zorder=2)
    return line


def _subtitle(frames: Mapping[str, pd.DataFrame]) -> str:
    counts, lost = _seeds(frames), _diverged(frames)
    if counts == [1]:
        return f"one seed{lost}"
    seeds = " to ".join(map(str, sorted({counts[0], counts[-1]})))
    statistic = "IQM" if counts[-1] >= 4 else "mean"
    return f"{statistic} of {seeds} seeds with 95 % bootstrap interval{lost}"


def _diverged(frames: Mapping[str, pd.DataFrame]) -> str:
    lost = {label: diverged(frame) for label, frame in frames.items()}
    told = ", ".join(
        f"{label} {len(seeds)}/{frames[label]['seed'].nunique()}"
        for label, seeds in lost.items()
        if seeds
    )
    return f"; diverged: {told}" if told else ""


def _seeds(frames: Mapping[str, pd.DataFrame]) -> list[int]:
    return sorted({int(frame["seed"].nunique()) for frame in frames.values()})


_TITLE_WIDTH = 72  # characters that fit on a line


def _style(axes: Axes, title: str, subtitle: str, lines: list[Line2D]) -> None:
    shown = textwrap.fill(title, _TITLE_WIDTH)
    axes.set_title(shown, loc="left", fontsize=13, color=INK, pad=22)
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, fontsize=9.5, color=FAINT)
    axes.set_xlabel(_STEPS, color=INK, fontsize=11)
    axes.set_ylabel(_RETURN, color=INK, fontsize=11)
    _finish(axes, lines, 6)


def _finish(axes: Axes, lines: list[Line2D], ticks: int) -> None:
    tidy(axes)
    axes.set_xlim(0, max(line.get_xdata().max(initial=1) for line in lines))
    count_steps(axes, ticks)


_STEPS, _RETURN = "agent steps", "return (greedy evaluation)"


def _label_threshold(axes: Axes, threshold: float) -> None:
    left = (axes.get_xlim()[0], threshold)
    offset = {"xytext": (4, 3), "textcoords": "offset points"}
    axes.annotate(f"{threshold:g}", left, fontsize=9, color=FAINT, **offset)


def _label_curves(axes: Axes, lines: list[Line2D]) -> None:
    """Write each label at the end of its curve, moving labels apart where they would overlap."""
    low, high = axes.get_ylim()
    lines = sorted((line for line in lines if len(line.get_ydata())), key=_end, reverse=True)
    places = [(_end(line) - low) / (high - low) for line in lines]
    for lower in range(1, len(places)):
        places[lower] = min(places[lower], places[lower - 1] - 0.052)
    # If the lowest label fell below the axis, all of them move up.
    lift = max(0.0, -min(places, default=0.0))
    beside = {"transform": axes.transAxes, "clip_on": False}
    for place, line in zip(places, lines, strict=True):
        style = {"color": line.get_color(), "linestyle": line.get_linestyle(), "linewidth": 1.8}
        axes.plot([1.012, 1.042], [place + lift] * 2, **style, **beside)
        name = {"color": line.get_color(), "fontsize": 11, "fontweight": "bold", "va": "center"}
        axes.text(1.05, place + lift, line.get_label(), **name, **beside)


def _end(line: Line2D) -> float:
    return float(line.get_ydata()[-1])
