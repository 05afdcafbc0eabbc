"""Drawing of described figures with matplotlib."""

import os
import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawn
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from experiments.figures.elements import STEPS, Axis, Figure, Interval, Line, Panel, Points
from experiments.figures.style import (
    FAINT,
    INK,
    count_steps,
    make_figure,
    plain,
    save,
    tidy,
    warn_of_few,
)

_MANY = 2  # columns of panels above which labels are smaller
_THIN = {"color": FAINT, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1}


def to_matplotlib(figure: Figure, path: str | os.PathLike) -> None:
    """Write a figure as a reproducible PNG: equal figures give equal bytes."""
    save(draw(figure), path)


def draw(figure: Figure) -> Drawn:
    """Draw a figure with matplotlib, without the global state of pyplot."""
    drawn = make_figure(*figure.size, figure.dpi)
    _head(drawn, figure)
    listed = figure.legend == "listed"
    rows, columns = -(-len(figure.panels) // figure.columns), figure.columns + listed
    grid = drawn.subplots(
        rows, columns, sharex=figure.shared, sharey=figure.shared, squeeze=False,
        width_ratios=[2] * figure.columns + [1] * listed,
    )  # fmt: skip
    places = [*figure.panels, *[None] * (rows * columns - len(figure.panels))]
    for place, (axes, panel) in enumerate(zip(grid.ravel(), places, strict=True)):
        if panel is None:
            axes.set_axis_off()
            continue
        _panel(axes, panel, figure.columns > _MANY)
        if figure.legend == "beside":
            _name_beside(axes)
        if figure.shared:
            _share_labels(axes, place % columns == 0, place + columns >= len(figure.panels))
    if figure.legend == "ends":
        _name_ends(grid[0, 0])
    if figure.legend == "below":
        lines = [Line2D([], [], label=plain(key.label), **key.style) for key in figure.keys]
        below = {"loc": "outside lower center", "ncols": min(len(lines), 7), "frameon": False}
        drawn.legend(handles=lines, **below)
    if listed:
        _list(grid[0, -1], figure)
    if figure.seeds is not None:
        warn_of_few(drawn, figure.seeds)
    return drawn


def _head(drawn: Drawn, figure: Figure) -> None:
    width, height = figure.size
    lines = textwrap.wrap(plain(figure.title), int(8.8 * width))
    room = [""] * bool(figure.subtitle)
    drawn.suptitle("\n".join([*lines, *room]), x=0.01, ha="left", fontsize=13, color=INK)
    if figure.subtitle:
        top = 1 - (0.2 + 0.22 * len(lines)) / height
        drawn.text(0.01, top, plain(figure.subtitle), fontsize=9.5, color=FAINT)


def _panel(axes: Axes, panel: Panel, small: bool) -> None:
    for mark in panel.marks:
        if isinstance(mark, Line):
            _line(axes, mark)
        elif isinstance(mark, Points):
            _points(axes, mark)
        else:
            _interval(axes, mark)
    for rule in panel.rules:
        (axes.axvline if rule.upright else axes.axhline)(rule.value, **_THIN)
    tidy(axes)
    if any(isinstance(mark, Interval) for mark in panel.marks):
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    title = "\n".join(textwrap.fill(line, 40) for line in _text(panel.title).split("\n"))
    axes.set_title(title, loc="left", fontsize=10, color=panel.colour)
    for name, axis in (("x", panel.x), ("y", panel.y)):
        _axis(axes, name, axis, small)
    if panel.y.label.lower() == panel.title.lower():
        axes.set_ylabel("")
    for rule in panel.rules:
        if rule.text:
            place = {"xytext": (4, 3), "textcoords": "offset points"}
            at = axes.get_xlim()[0], rule.value
            axes.annotate(rule.text, at, fontsize=9, color=FAINT, **place)


def _axis(axes: Axes, name: str, axis: Axis, small: bool) -> None:
    own, steps = getattr(axes, f"{name}axis"), name == "x" and axis.label == STEPS
    own.set_label_text(_text(axis.label), fontsize=8.5 if small else 10, color=INK)
    if axis.log:
        getattr(axes, f"set_{name}scale")("log")
        own.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        own.set_minor_locator(NullLocator())
    elif steps:
        count_steps(axes, 3 if small else 6)
    elif axis.whole:
        own.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if axis.limits is not None:
        getattr(axes, f"set_{name}lim")(*axis.limits)
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        own.set_ticks(places, [_text(each) for each in names])
    elif not steps:
        own.set_major_formatter(FuncFormatter(_number))


def _line(axes: Axes, line: Line) -> None:
    x, y, colour = np.asarray(line.x), np.asarray(line.y), line.style["color"]
    shown = {"label": plain(line.label) if line.named else "_", **line.style}
    if line.bars and line.low is not None and line.high is not None:
        bars = np.abs([line.low - y, line.high - y])
        axes.errorbar(x, y, yerr=bars, marker="o", markersize=4, capsize=2, elinewidth=1, **shown)
        at = list(line.crossed)
        if at:
            cross = {"marker": "X", "markersize": 9, "color": colour, "linestyle": ""}
            axes.plot(x[at], y[at], label="some seeds diverged", **cross)
        return
    if len(x) == 1:  # a single point has no visible line
        face = "white" if line.style["linestyle"] == ":" else colour
        shown |= {"marker": "o", "clip_on": False, "markerfacecolor": face}
    axes.plot(x, y, drawstyle="steps-post" if line.steps else "default", **shown)
    if line.low is not None and line.high is not None:
        if len(x) == 1:
            axes.vlines(x, line.low, line.high, color=colour, alpha=0.4, linewidth=4, zorder=2)
        around = {"color": colour, "alpha": 0.15, "linewidth": 0, "zorder": 2}
        axes.fill_between(x, line.low, line.high, **around)


def _points(axes: Axes, points: Points) -> None:
    style = {"color": points.style["color"], "marker": "o", "linestyle": ""}
    style |= {"markersize": 4.5, "alpha": points.opacity}
    if points.ring:
        style |= {"markersize": 11, "alpha": 1.0, "markerfacecolor": "none"}
    label = plain(points.label) if points.named else "_"
    axes.plot(np.asarray(points.x), np.asarray(points.y), label=label, **style)


def _interval(axes: Axes, found: Interval) -> None:
    colour = found.style["color"]
    axes.plot([found.low, found.high], [found.row] * 2, color=colour, linewidth=2, alpha=0.8)
    face = "white" if found.hollow else colour
    axes.plot([found.value], [found.row], "o", markersize=7, color=colour, markerfacecolor=face)
    if found.note:
        note = {"textcoords": "offset points", "xytext": (0, 7), "fontsize": 8, "color": INK}
        axes.annotate(plain(found.note), (found.value, found.row), ha="center", **note)


def _share_labels(axes: Axes, left: bool, lowest: bool) -> None:
    """Remove labels of shared axes, except in the left column and the lowest row."""
    if not left:
        axes.set_ylabel("")
    if lowest:
        axes.tick_params(labelbottom=True)
    else:
        axes.set_xlabel("")


def _name_beside(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    first = dict(reversed(list(zip(labels, handles, strict=True))))
    named = {label: first[label] for label in dict.fromkeys(labels)}
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axes.legend(named.values(), named.keys(), fontsize=8, frameon=False, **place)


def _name_ends(axes: Axes) -> None:
    """Label each line at its right end, and separate labels that would overlap."""
    low, high = axes.get_ylim()
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    ends = {line: float(line.get_ydata()[-1]) for line in lines if len(line.get_ydata())}
    lines = sorted(ends, key=ends.__getitem__, reverse=True)
    places = [(ends[line] - low) / (high - low) for line in lines]
    for lower in range(1, len(places)):
        places[lower] = min(places[lower], places[lower - 1] - 0.052)
    lift = max(0.0, -min(places, default=0.0))  # keep all labels above the axis
    beside = {"transform": axes.transAxes, "clip_on": False}
    for place, line in zip(places, lines, strict=True):
        colour = line.get_color()
        style = {"color": colour, "linestyle": line.get_linestyle(), "linewidth": 1.8}
        axes.plot([1.012, 1.042], [place + lift] * 2, **style, **beside)
        name = {"color": colour, "fontsize": 11, "fontweight": "bold", "va": "center"}
        axes.text(1.05, place + lift, line.get_label(), **name, **beside)


def _list(axes: Axes, figure: Figure) -> None:
    """Draw the legend as a list of keys with their notes."""
    axes.set_xlim(0, 1)
    axes.set_ylim(len(figure.keys) - 0.3, -0.5)
    for place, key in enumerate(figure.keys):
        axes.plot([0, 0.09], [place, place], **key.style)
        name = {"fontsize": 10.5, "fontweight": "bold", "color": key.style["color"]}
        axes.text(0.13, place, plain(key.label), va="center", **name)
        axes.text(0.13, place + 0.36, plain(key.note), fontsize=9, va="center", color=INK)


def _text(text: str) -> str:
    """Apply `style.plain` to each line of a text."""
    return "\n".join(map(plain, text.split("\n")))


def _number(value: float, place: int | None = None) -> str:
    del place
    shown = f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:,g}"
    return shown.replace("-", "\N{MINUS SIGN}")
