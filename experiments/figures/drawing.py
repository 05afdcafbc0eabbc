"""Parts that figures share: lines, intervals, labels of axes, grids of panels, and their files.

A panel is a function that draws one pair of axes. `write_grid` draws panels into one PNG, and
`to_svg` a single panel for a page.
"""

import io
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from experiments.figures.style import (
    FAINT,
    INK,
    Style,
    Styles,
    count_steps,
    make_figure,
    plain,
    save,
    tidy,
    warn_of_few,
)

STEPS = "agent steps"  # label of axes with few ticks

Panel = Callable[[Axes], None]


def write_grid(
    path: str | os.PathLike,
    title: str,
    panels: Sequence[Panel | None],
    size: tuple[float, float],
    *,
    columns: int = 1,
    subtitle: str = "",
    legend: Styles | None = None,
    shared: bool = False,
    seeds: int | None = None,
    dpi: int = 100,
) -> None:
    """Write a grid of panels as a reproducible PNG: equal figures give equal bytes.

    Args:
      path: path of the PNG.
      title: title of the figure, in one line.
      panels: panels in rows of `columns`; None leaves a cell empty.
      size: width and height in inches.
      columns: number of columns.
      subtitle: line below the title.
      legend: styles of the lines by label, for a legend below the panels.
      shared: whether panels share limits and labels of their axes.
      seeds: number of seeds; if it is too small for a verdict, the figure has a note.
      dpi: pixels per inch.
    """
    figure, rows = make_figure(*size, dpi), -(-len(panels) // columns)
    write_head(figure, title, subtitle)
    grid = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False)
    for place, (axes, panel) in enumerate(zip_longest(grid.ravel(), panels)):
        if panel is None:
            axes.set_axis_off()
            continue
        panel(axes)
        if shared and place % columns:
            axes.set_ylabel("")
        if shared and place + columns < len(panels):
            axes.set_xlabel("")
        elif shared:
            axes.tick_params(labelbottom=True)
    if legend:
        lines = [Line2D([], [], label=plain(label), **style) for label, style in legend.items()]
        below = {"loc": "outside lower center", "ncols": min(len(lines), 7), "frameon": False}
        figure.legend(handles=lines, **below)
    if seeds is not None:
        warn_of_few(figure, seeds)
    save(figure, path)


def to_svg(panel: Panel, size: tuple[float, float]) -> str:
    """Return a panel of a size in inches as an SVG element, with text as text instead of paths.

    Equal panels give equal strings. Ids of elements are hashes of their content, so that ids of
    several figures on one page do not clash.
    """
    figure, content = make_figure(*size, dpi=72), io.StringIO()
    axes = figure.subplots()
    panel(axes)
    for background in (figure.patch, axes.patch):
        background.set_visible(False)
    kept = {"Creator": None, "Date": None, "Format": None, "Type": None}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxreplay"}):
        FigureCanvasSVG(figure).print_svg(content, metadata=kept)
    text = content.getvalue()
    for pattern, shorter in (
        (r".*?<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", r'<svg \1 role="img">'),
        (r"<metadata>.*?</metadata>|<style.*?</style>| font-family: [^;]*;", ""),  # see page.css
        (r'<g id="[^"]*"', "<g"),  # these ids repeat in every figure
        (r"(<defs>\s*</defs>)?\s*\n\s*", "\n"),
    ):
        text = re.sub(pattern, shorter, text, count=pattern.startswith(".*"), flags=re.DOTALL)
    return text.strip()


def write_head(figure: Figure, title: str, subtitle: str = "") -> None:
    """Draw the title of a figure, wrapped to its width, and the subtitle."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(plain(title), int(8.8 * width))
    room = [""] * bool(subtitle)
    figure.suptitle("\n".join([*lines, *room]), x=0.01, ha="left", fontsize=13, color=INK)
    if subtitle:
        top = 1 - (0.2 + 0.22 * len(lines)) / height
        figure.text(0.01, top, plain(subtitle), fontsize=9.5, color=FAINT)


def finish(axes: Axes, title: str, x: str, y: str = "", colour: str = INK) -> None:
    """Apply the common style to axes that have their marks and scales, and label them.

    Args:
      axes: the axes.
      title: title, in one or several lines.
      x: label of the horizontal axis; with `STEPS`, the axis has few ticks.
      y: label of the vertical axis, left out if it repeats the title.
      colour: colour of the title.
    """
    tidy(axes)
    lines = [textwrap.fill(line, 44) for line in _plain_lines(title).split("\n")]
    axes.set_title("\n".join(lines), loc="left", fontsize=10, color=colour)
    axes.set_xlabel(_plain_lines(x), fontsize=9.5, color=INK)
    axes.set_ylabel("" if y.lower() == title.lower() else _plain_lines(y), fontsize=9.5, color=INK)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            axis.set_minor_locator(NullLocator())
        if axis.get_scale() != "symlog":
            axis.set_major_formatter(FuncFormatter(_number))
    if x == STEPS:
        count_steps(axes, 4)


def draw_line(
    axes: Axes,
    label: str,
    x: ArrayLike,
    y: ArrayLike,
    style: Style,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
) -> None:
    """Draw a line `[x]`, with a band from `low` to `high`; a single point has a marker."""
    x, colour, shown = np.asarray(x), style["color"], dict(style)
    if x.size == 1:  # a single point has no visible line
        face = "white" if style["linestyle"] == ":" else colour
        shown |= {"marker": "o", "clip_on": False, "markerfacecolor": face}
    axes.plot(x, np.asarray(y), label=plain(label), **shown)
    if low is None or high is None:
        return
    if x.size == 1:
        axes.vlines(x, low, high, color=colour, alpha=0.4, linewidth=4, zorder=2)
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0, zorder=2)


def draw_interval(
    axes: Axes,
    row: float,
    estimate: Sequence[float],
    style: Style,
    hollow: bool = False,
    note: str = "",
) -> None:
    """Draw an interval and the value inside it in a row, with a note above the value.

    `estimate` is the value, then the lower and the upper end of the interval.
    """
    value, low, high = estimate
    colour = style["color"]
    axes.plot([low, high], [row, row], color=colour, linewidth=2, alpha=0.8)
    face = "white" if hollow else colour
    axes.plot([value], [row], "o", markersize=7, color=colour, markerfacecolor=face)
    if note:
        above = {"textcoords": "offset points", "xytext": (0, 7), "fontsize": 8, "color": INK}
        axes.annotate(plain(note), (value, row), ha="center", **above)


def row_names(labels: Sequence[str]) -> list[str]:
    """Return the labels of rows, wrapped to 24 characters, or 44 if a label has several lines."""
    width = 44 if any("\n" in own for own in labels) else 24
    wrapped = ["\n".join(textwrap.fill(part, width) for part in own.split("\n")) for own in labels]
    return list(map(_plain_lines, wrapped))


def finish_rows(
    axes: Axes, title: str, x: str, labels: Sequence[str], middle: float | None = None
) -> None:
    """Finish axes with a row for each label, the first at the top, and a line at `middle`."""
    if middle is not None:
        draw_rule(axes, middle, upright=True)
    finish(axes, title, x)
    axes.set_xlabel(axes.get_xlabel(), loc="right")  # longer than the axes if names are long
    axes.set_yticks(range(len(labels)), row_names(labels))
    axes.set_ylim(len(labels) - 0.4, -0.8)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)


def draw_rule(axes: Axes, value: float, text: str = "", *, upright: bool = False) -> None:
    """Draw a thin dashed line across the axes, with a text beside its right end."""
    thin = {"color": FAINT, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1}
    (axes.axvline if upright else axes.axhline)(value, **thin)
    if text:
        place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
        look = {"fontsize": 9, "color": FAINT, "va": "center"}
        axes.annotate(text, (1, value), xytext=(3, 0), **look, **place)


def draw_legend(axes: Axes, columns: int = 2) -> None:
    """Draw the legend of one panel below its horizontal axis; equal labels share an entry."""
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4}
    axes.legend(named.values(), named.keys(), fontsize=8, ncols=columns, frameon=False, **place)


def whole_ticks(axes: Axes, name: str) -> None:
    """Put ticks of the axis "x" or "y" at integers."""
    getattr(axes, f"{name}axis").set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _plain_lines(text: str) -> str:
    return "\n".join(map(plain, text.split("\n")))


def _number(value: float, place: Any = None) -> str:
    del place
    shown = f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:,g}"
    return shown.replace("-", "\N{MINUS SIGN}")
