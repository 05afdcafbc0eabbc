"""Figures and tables of finished runs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator

from experiments.analysis.files import write_json
from experiments.analysis.statistics import bootstrap_interval, curves, iqm
from experiments.training.inspection import ODDS_EDGES

# Okabe and Ito's palette without yellow: distinct for every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
_DIVERGED = 1e5  # beyond, a metric is drawn on a logarithmic scale, not to hide all others
_INK, _FAINT = "#333333", "#8a8a8a"


def learning_curves(
    frames: Mapping[str, pd.DataFrame],
    path: str | os.PathLike,
    title: str,
    threshold: float | None = None,
) -> None:
    """Draw one learning curve per label into a PNG of 1200 x 750 pixels.

    A line is the interquartile mean over seeds (the mean for fewer than four), its band the 95 %
    bootstrap interval (Agarwal et al. 2021). No pyplot, so no state beyond the figure.

    Args:
      frames: metrics by label, with columns seed, step and eval_return.
      path: of the PNG.
      title: one line.
      threshold: the return that counts as solved; drawn as a thin line.
    """
    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if threshold is not None:
        axes.axhline(threshold, color=_FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    faint = 0.15 if len(frames) <= 4 else 0.06  # many bands on one another hide the lines
    lines = [
        _draw_curve(axes, number, label, frame, faint)
        for number, (label, frame) in enumerate(frames.items())
    ]
    _style(axes, title, _how_many(frames), lines)
    if threshold is not None:
        _name_threshold(axes, threshold)
    _name_curves(axes, lines)
    save(figure, path)


def joint(
    frames: Mapping[str, pd.DataFrame],
    summaries: Mapping[str, Mapping[str, Any]],
    out: Path,
    title: str,
    threshold: float | None = None,
) -> str:
    """Write the figures and the table of several runs, and what they are into `summary.json`.

    Args:
      frames: metrics by label.
      summaries: the content of the runs' `summary.json`, by label.
      out: the folder, which exists.
      title: what all of them have in common.
      threshold: the return that counts as solved.

    Returns:
      What to print: the table, and where things are.
    """
    learning_curves(frames, out / "learning_curves.png", title, threshold)
    drawn = [out / "learning_curves.png"]
    if replayed(frames, out / "replayed.png", f"What {title} replays"):
        drawn.append(out / "replayed.png")
    if own_metrics(frames, out / "own_metrics.png", title):
        drawn.append(out / "own_metrics.png")
    text = table([{**summary, "replay": label} for label, summary in summaries.items()])
    (out / "comparison.md").write_text(text)
    write_json(out / "summary.json", dict(summaries))
    figures = "\n         ".join(map(str, drawn))
    return f"\n{text}\ntable:   {out / 'comparison.md'}\nfigures: {figures}"


_PANELS = {  # what is drawn of the inspection: column, title
    "abs_td": "mean |TD error|",
    "td_std": "std of TD error",
    "q_value": "mean Q",
    "q_std": "std of Q",
    "age": "mean age (agent steps)",
    "distinct": "distinct share of a batch",
    "effective_buffer": "share of the buffer in use, 1 / (N ΣP²)",
}


def replayed(frames: Mapping[str, pd.DataFrame], path: str | os.PathLike, title: str) -> bool:
    """Draw what is replayed beside what is stored, over training, into a PNG of 1200 x 600 pixels.

    Lines are means over seeds. The last panel is the histogram of N P, how many times likelier than
    uniform the stored transitions are, at the last log point.

    Args:
      frames: metrics by label, with the columns of `inspection.inspect`.
      path: of the PNG.
      title: one line.

    Returns:
      Whether there was anything to draw: runs with `inspect` 0 have no such columns.
    """
    frames = {label: frame for label, frame in frames.items() if "replayed/abs_td" in frame}
    if not frames:
        return False
    figure = Figure(figsize=(12, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=_INK)
    grid = figure.subplots(2, 4).ravel()
    for axes, (name, label) in zip(grid, _PANELS.items(), strict=False):
        _draw_panel(axes, frames, name, label)
    _draw_odds(grid[-1], frames)
    handles = list(grid[0].get_legend_handles_labels())
    figure.legend(
        *handles, loc="outside lower center", ncols=min(len(handles[0]), 9), frameon=False
    )
    save(figure, path)
    return True


def own_metrics(frames: Mapping[str, pd.DataFrame], path: str | os.PathLike, title: str) -> bool:
    """Draw what methods and agents say of themselves, over training, into a PNG 1200 pixels wide.

    One panel per column under `replay/` and `agent/`: priorities or ReF-ER's beta and far share,
    KL divergences, losses. Lines are means over seeds.

    Args:
      frames: metrics by label.
      path: of the PNG.
      title: one line.

    Returns:
      Whether there was anything to draw.
    """
    names = {
        name: None
        for frame in frames.values()
        for name in frame
        if name.startswith(("replay/", "agent/")) and frame[name].abs().max() > 0
    }
    if not names:
        return False
    rows = -(-len(names) // 4)
    figure = Figure(figsize=(12, 0.9 + 2.4 * rows), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=_INK)
    grid = figure.subplots(rows, 4, squeeze=False).ravel()
    for axes, name in zip(grid, names, strict=False):
        _draw_means(axes, frames, name)
        axes.set_title(name.replace("_", " "), loc="left", fontsize=10, color=_INK)
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    lines = [
        Line2D([], [], label=label, linewidth=1.6, **colour_and_dashes(number))
        for number, label in enumerate(frames)
    ]
    figure.legend(
        handles=lines, loc="outside lower center", ncols=min(len(lines), 9), frameon=False
    )
    save(figure, path)
    return True


def save(figure: Figure, path: str | os.PathLike) -> None:
    """Write a PNG whose bytes depend on nothing but the figure."""
    figure.savefig(path, metadata={"Software": None}, pil_kwargs={"optimize": True})


def colour_and_dashes(number: int) -> dict[str, str]:
    """Return the style of the `number`-th line of a figure."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def tidy(axes: Axes) -> None:
    """Give axes the look that all figures share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_panel(axes: Axes, frames: Mapping[str, pd.DataFrame], name: str, label: str) -> None:
    for number, (method, frame) in enumerate(frames.items()):
        means = frame.groupby("step").mean(numeric_only=True)
        style = colour_and_dashes(number)
        axes.plot(means.index, means[f"replayed/{name}"], label=method, linewidth=1.6, **style)
        if f"stored/{name}" in means:
            faint = {"color": style["color"], "linestyle": ":", "linewidth": 1.0}
            axes.plot(means.index, means[f"stored/{name}"], **faint)
    axes.plot([], [], color=_FAINT, linestyle=":", linewidth=1.0, label="stored (uniformly)")
    tidy(axes)
    axes.set_title(label, loc="left", fontsize=10, color=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def _draw_means(axes: Axes, frames: Mapping[str, pd.DataFrame], name: str) -> None:
    largest = 0.0
    for number, frame in enumerate(frames.values()):
        if name in frame:
            means = frame.groupby("step")[name].mean()
            axes.plot(means.index, means, linewidth=1.6, **colour_and_dashes(number))
            largest = max(largest, means.abs().max())
    if largest > _DIVERGED:
        axes.set_yscale("symlog", linthresh=1.0)
        axes.yaxis.set_major_locator(SymmetricalLogLocator(base=1e4, linthresh=1.0))
    tidy(axes)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def _draw_odds(axes: Axes, frames: Mapping[str, pd.DataFrame]) -> None:
    names = [f"replayed/odds_{number}" for number in range(len(ODDS_EDGES) + 1)]
    width = ODDS_EDGES[1] - ODDS_EDGES[0]
    edges = [ODDS_EDGES[0] - width, *ODDS_EDGES, ODDS_EDGES[-1] + width]
    for number, frame in enumerate(frames.values()):
        shares = frame[frame["step"] == frame["step"].max()][names].mean()
        axes.stairs(shares, edges, linewidth=1.6, **colour_and_dashes(number))
    tidy(axes)
    axes.set_title("stored, by log10(N P), at the end", loc="left", fontsize=10, color=_INK)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table that also reads well in a terminal.

    Args:
      rows: one per replay method: the keys of `statistics.summarise`, `replay` (its name) and
        `steps_per_second` (agent steps of all seeds per second, or None).
    """
    threshold = next((row["threshold"] for row in rows if row["threshold"] is not None), None)
    header = ["replay", "final return: IQM [95 % interval]"]
    if threshold is not None:
        header += [f"seeds at {threshold:g}", f"steps to {threshold:g} (median)"]
    cells = [header + ["steps/s"], *(_cells(row, threshold is not None) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [_line(cells[0], widths), _line(rule, widths)]
    return "\n".join(lines + [_line(row, widths) for row in cells[1:]]) + "\n"


def _draw_curve(axes: Axes, number: int, label: str, frame: pd.DataFrame, faint: float) -> Line2D:
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


def _how_many(frames: Mapping[str, pd.DataFrame]) -> str:
    counts = sorted({int(frame["seed"].nunique()) for frame in frames.values()})
    if counts == [1]:
        return "one seed"
    seeds = " to ".join(map(str, sorted({counts[0], counts[-1]})))
    return f"{'IQM' if counts[-1] >= 4 else 'mean'} of {seeds} seeds with 95 % bootstrap interval"


def _style(axes: Axes, title: str, subtitle: str, lines: list[Line2D]) -> None:
    axes.set_title(title, loc="left", fontsize=13, color=_INK, pad=22)
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, fontsize=9.5, color=_FAINT)
    axes.set_xlabel("agent steps", color=_INK, fontsize=11)
    axes.set_ylabel("return (greedy evaluation)", color=_INK, fontsize=11)
    tidy(axes)
    axes.set_xlim(0, max(line.get_xdata().max(initial=1) for line in lines))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def _name_threshold(axes: Axes, threshold: float) -> None:
    left = (axes.get_xlim()[0], threshold)
    offset = {"xytext": (4, 3), "textcoords": "offset points"}
    axes.annotate(f"{threshold:g}", left, fontsize=9, color=_FAINT, **offset)


def _name_curves(axes: Axes, lines: list[Line2D]) -> None:
    """Write every label at the end of its curve, pushed apart where they would overlap."""
    low, high = axes.get_ylim()
    lines = sorted((line for line in lines if len(line.get_ydata())), key=_end, reverse=True)
    places = [(_end(line) - low) / (high - low) for line in lines]
    for lower in range(1, len(places)):
        places[lower] = min(places[lower], places[lower - 1] - 0.052)
    # The whole stack slides up if its lowest label fell below the axis.
    lift = max(0.0, -min(places, default=0.0))
    beside = {"transform": axes.transAxes, "clip_on": False}
    for place, line in zip(places, lines, strict=True):
        style = {"color": line.get_color(), "linestyle": line.get_linestyle(), "linewidth": 1.8}
        axes.plot([1.012, 1.042], [place + lift] * 2, **style, **beside)
        name = {"color": line.get_color(), "fontsize": 11, "fontweight": "bold", "va": "center"}
        axes.text(1.05, place + lift, line.get_label(), **name, **beside)


def _end(line: Line2D) -> float:
    return float(line.get_ydata()[-1])


def _cells(row: Mapping[str, Any], with_threshold: bool) -> list[str]:
    low, high = row["final_interval"]
    cells = [row["replay"], f"{_show(row['final_iqm'])} [{_show(low)}, {_show(high)}]"]
    if with_threshold:
        steps = row["median_steps_to_threshold"]
        cells += [f"{row['reached']}/{len(row['seeds'])}", _whole(steps)]
    return cells + [_whole(row["steps_per_second"])]


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = [(cell, width) for cell, width in zip(cells, widths, strict=True)]
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return f"| {' | '.join(padded)} |"
