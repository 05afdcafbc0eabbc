"""Small panels over training: what is replayed, and the metrics of methods and agents."""

import os
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import SymmetricalLogLocator

from experiments.analysis.axes import DIVERGED
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
from experiments.training.inspection import ODDS_EDGES

PANELS = {  # column of the inspection -> title of its panel
    "abs_td": "mean |TD error|",
    "td_std": "std of TD error in a batch",
    "q_value": "mean Q",
    "q_std": "std of Q in a batch",
    "age": "mean age (agent steps)",
    "distinct": "distinct share of a batch",
    "effective_buffer": "share of the buffer in use, 1 / (N ΣP²)",
}


SHARES = ("distinct", "effective_buffer", "entropy")  # their axes show [0, 1]


def replayed(
    frames: Mapping[str, pd.DataFrame],
    path: str | os.PathLike,
    title: str,
    methods: Mapping[str, str] | None = None,
) -> bool:
    """Plot what is replayed beside what is stored, over training, into a PNG of 1200 x 600 pixels.

    Lines are means over seeds. The last panel is a histogram of the stored transitions at the last
    log point, by N P: how many times likelier to be drawn than under uniform replay they are.

    Args:
      frames: metrics by label, with the columns of `inspection.inspect`.
      path: where to write the PNG.
      title: one line.
      methods: the replay method behind each label, for its colour; None: the label is its name.

    Returns:
      Whether there was anything to plot: runs with `inspect` 0 have no such columns.
    """
    styles = _styles(frames, methods)
    frames = {label: frame for label, frame in frames.items() if "replayed/abs_td" in frame}
    if not frames:
        return False
    figure = make_figure(12, 6)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK)
    grid = figure.subplots(2, 4).ravel()
    for axes, (name, label) in zip(grid, PANELS.items(), strict=False):
        _plot_panel(axes, frames, styles, name, label)
    _plot_odds(grid[-1], frames, styles)
    handles = list(grid[0].get_legend_handles_labels())
    figure.legend(
        *handles, loc="outside lower center", ncols=min(len(handles[0]), 7), frameon=False
    )
    _warn(figure, frames)
    save(figure, path)
    return True


def own_metrics(
    frames: Mapping[str, pd.DataFrame],
    path: str | os.PathLike,
    title: str,
    methods: Mapping[str, str] | None = None,
) -> bool:
    """Plot the metrics of methods and agents, over training, into a PNG 1200 pixels wide.

    One panel per column under `replay/` and `agent/`: priorities or ReF-ER's beta and far share,
    KL divergences, losses. Lines are means over seeds.

    Args:
      frames: metrics by label.
      path: where to write the PNG.
      title: one line.
      methods: the replay method behind each label, for its colour; None: the label is its name.

    Returns:
      Whether there was anything to plot.
    """
    styles = _styles(frames, methods)
    names = {
        name: None
        for frame in frames.values()
        for name in frame
        if name.startswith(("replay/", "agent/")) and frame[name].abs().max() > 0
    }
    if not names:
        return False
    rows = -(-len(names) // 4)
    figure = make_figure(12, 0.9 + 2.4 * rows)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK)
    grid = figure.subplots(rows, 4, squeeze=False).ravel()
    for axes, name in zip(grid, names, strict=False):
        _plot_means(axes, frames, styles, name)
        axes.set_title(name.replace("_", " "), loc="left", fontsize=10, color=INK)
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    lines = [Line2D([], [], label=label, **styles[label]) for label in frames]
    figure.legend(
        handles=lines, loc="outside lower center", ncols=min(len(lines), 7), frameon=False
    )
    _warn(figure, frames)
    save(figure, path)
    return True


def _warn(figure: Figure, frames: Mapping[str, pd.DataFrame]) -> None:
    if len(frames) > 1:
        warn_of_few(figure, min(int(frame["seed"].nunique()) for frame in frames.values()))


def _styles(
    frames: Mapping[str, pd.DataFrame], methods: Mapping[str, str] | None
) -> dict[str, dict[str, Any]]:
    return styles_of(methods or {label: label for label in frames})


def _plot_panel(
    axes: Axes,
    frames: Mapping[str, pd.DataFrame],
    styles: Mapping[str, Mapping[str, Any]],
    name: str,
    label: str,
) -> None:
    for method, frame in frames.items():
        means = frame.groupby("step").mean(numeric_only=True)
        shown = {"label": method, **styles[method], **marks(len(means))}
        axes.plot(means.index, means[f"replayed/{name}"], **shown)
        if f"stored/{name}" in means:
            faint = {"color": styles[method]["color"], "linestyle": ":", "linewidth": 1.0}
            axes.plot(means.index, means[f"stored/{name}"], **faint, **marks(len(means), True))
    axes.plot([], [], color=FAINT, linestyle=":", linewidth=1.0, label="stored (uniformly)")
    tidy(axes)
    if name in SHARES:
        axes.set_ylim(-0.02, 1.02)
    axes.set_title(label, loc="left", fontsize=10, color=INK)
    axes.set_xlabel("agent steps", fontsize=8.5, color=INK)
    count_steps(axes, 3)


def _plot_means(
    axes: Axes,
    frames: Mapping[str, pd.DataFrame],
    styles: Mapping[str, Mapping[str, Any]],
    name: str,
) -> None:
    largest = 0.0
    for label, frame in frames.items():
        if name in frame:
            means = frame.groupby("step")[name].mean()
            axes.plot(means.index, means, **styles[label], **marks(len(means)))
            largest = max(largest, means.abs().max())
    if largest > DIVERGED:
        axes.set_yscale("symlog", linthresh=1.0)
        axes.yaxis.set_major_locator(SymmetricalLogLocator(base=1e4, linthresh=1.0))
    else:
        _widen(axes)
    tidy(axes)
    if name.endswith(("_share", "/subset", "/skipped")):
        axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("agent steps", fontsize=8.5, color=INK)
    count_steps(axes, 3)


def _widen(axes: Axes) -> None:
    """Let no axis make differences of a thousandth look large."""
    low, high = axes.get_ylim()
    middle, least = (low + high) / 2, 5e-4 * max(abs(low), abs(high))
    axes.set_ylim(min(low, middle - least), max(high, middle + least))
    axes.ticklabel_format(axis="y", useOffset=False)


def _plot_odds(
    axes: Axes,
    frames: Mapping[str, pd.DataFrame],
    styles: Mapping[str, Mapping[str, Any]],
) -> None:
    names = [f"replayed/odds_{number}" for number in range(len(ODDS_EDGES) + 1)]
    width = ODDS_EDGES[1] - ODDS_EDGES[0]
    edges = [ODDS_EDGES[0] - width, *ODDS_EDGES, ODDS_EDGES[-1] + width]
    for label, frame in frames.items():
        shares = frame[frame["step"] == frame["step"].max()][names].mean()
        axes.stairs(shares, edges, **styles[label])
    tidy(axes)
    axes.set_ylim(-0.02, 1.02)
    axes.set_title("share of the stored, at the end", loc="left", fontsize=10, color=INK)
    axes.set_xlabel("log10 of N P (uniform: 0)", fontsize=8.5, color=INK)
