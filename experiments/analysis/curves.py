"""Learning curves of several runs in one figure."""

import os
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from experiments.analysis.statistics import bootstrap_interval, curves, iqm
from experiments.analysis.style import (
    FAINT,
    INK,
    colour_and_dashes,
    count_steps,
    make_figure,
    save,
    tidy,
)


def learning_curves(
    frames: Mapping[str, pd.DataFrame],
    path: str | os.PathLike,
    title: str,
    threshold: float | None = None,
) -> None:
    """Plot one learning curve per label into a PNG of 1200 x 750 pixels.

    A line is the interquartile mean over seeds (the mean for fewer than four), the band around it
    the 95 % bootstrap interval (Agarwal et al. 2021).

    Args:
      frames: metrics by label, with columns seed, step and eval_return.
      path: where to write the PNG.
      title: one line.
      threshold: the return that counts as solved; plotted as a thin line.
    """
    figure = make_figure(8, 5, dpi=150)
    axes = figure.add_subplot()
    if threshold is not None:
        axes.axhline(threshold, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    faint = 0.15 if len(frames) <= 4 else 0.06  # many overlapping bands would hide the lines
    lines = [
        _plot_curve(axes, number, label, frame, faint)
        for number, (label, frame) in enumerate(frames.items())
    ]
    _style(axes, title, _subtitle(frames), lines)
    if threshold is not None:
        _label_threshold(axes, threshold)
    _label_curves(axes, lines)
    save(figure, path)


def _plot_curve(axes: Axes, number: int, label: str, frame: pd.DataFrame, faint: float) -> Line2D:
    returns = curves(frame).dropna()
    steps, values = returns.index.to_numpy(), returns.to_numpy().T
    middle, style = iqm(values), colour_and_dashes(number)
    (line,) = axes.plot(steps, middle, linewidth=1.8, zorder=3, label=label, **style)
    if len(values) > 1:
        low, high = bootstrap_interval(values)
        axes.fill_between(
            steps, low, high, color=style["color"], alpha=faint, linewidth=0, zorder=2
        )
    return line


def _subtitle(frames: Mapping[str, pd.DataFrame]) -> str:
    counts = sorted({int(frame["seed"].nunique()) for frame in frames.values()})
    if counts == [1]:
        return "one seed"
    seeds = " to ".join(map(str, sorted({counts[0], counts[-1]})))
    return f"{'IQM' if counts[-1] >= 4 else 'mean'} of {seeds} seeds with 95 % bootstrap interval"


def _style(axes: Axes, title: str, subtitle: str, lines: list[Line2D]) -> None:
    axes.set_title(title, loc="left", fontsize=13, color=INK, pad=22)
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, fontsize=9.5, color=FAINT)
    axes.set_xlabel("agent steps", color=INK, fontsize=11)
    axes.set_ylabel("return (greedy evaluation)", color=INK, fontsize=11)
    tidy(axes)
    axes.set_xlim(0, max(line.get_xdata().max(initial=1) for line in lines))
    count_steps(axes, 6)


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
