"""Descriptions of figures, independent of the library that draws them.

`drawing.to_matplotlib` writes a figure as PNG; `report.plots.to_plotly` converts a panel to a plot
of an HTML page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from experiments.figures.style import INK

STEPS = "agent steps"  # label of axes with few ticks

Style = Mapping[str, Any]  # color, linestyle, linewidth and zorder, as `style.styles_of` returns
Styles = Mapping[str, Style]  # label -> style


@dataclass(frozen=True)
class Axis:
    """An axis of a panel."""

    label: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: Sequence[tuple[float, str]] = ()  # positions and labels; () for automatic ticks
    whole: bool = False  # whether ticks are integers


@dataclass(frozen=True)
class Line:
    """A line, with a band or bars from `low` to `high`."""

    label: str
    x: ArrayLike
    y: ArrayLike
    style: Style
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    bars: bool = False  # whether to draw points with error bars instead of a band
    steps: bool = False  # whether to draw a step function, constant until the next x
    note: str = ""  # text before the value in the tooltip
    texts: Sequence[str] = ()  # tooltip of every point
    crossed: Sequence[int] = ()  # indices of points drawn as crosses
    named: bool = True  # whether the legend contains it


@dataclass(frozen=True)
class Points:
    """Points without a line."""

    label: str
    x: ArrayLike
    y: ArrayLike
    style: Style
    texts: Sequence[str] = ()
    opacity: float = 0.5
    ring: bool = False  # whether to draw rings around points that are already drawn
    named: bool = True


@dataclass(frozen=True)
class Interval:
    """A value with a horizontal interval, in a row of the panel."""

    label: str
    row: float
    value: float
    low: float
    high: float
    style: Style
    hollow: bool = False
    note: str = ""  # text above the value
    text: str = ""  # tooltip


@dataclass(frozen=True)
class Rule:
    """A thin dashed line across the panel, horizontal unless `upright`."""

    value: float
    text: str = ""
    upright: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Line | Points | Interval]
    rules: Sequence[Rule] = ()
    colour: str = INK  # colour of the title
    height: int = 270  # pixels, in an HTML page
    wide: bool = False  # whether it spans the width of an HTML page


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    label: str
    style: Style
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A grid of panels in rows of `columns`; None leaves a cell empty."""

    title: str
    panels: Sequence[Panel | None]
    size: tuple[float, float]  # inches
    columns: int = 1
    subtitle: str = ""
    keys: Sequence[Key] = ()
    legend: Literal["below", "ends", "beside", "listed", "none"] = "none"
    shared: bool = False  # whether panels share limits and labels of their axes
    seeds: int | None = None  # number of seeds; too few for a verdict add a note
    dpi: int = 100


def rows(labels: Sequence[str], label: str = "") -> Axis:
    """Return a vertical axis with a row for each label, the first at the top."""
    return Axis(label, limits=(len(labels) - 0.4, -0.8), ticks=tuple(enumerate(labels)))


def share(label: str = "share") -> Axis:
    """Return an axis with limits [0, 1] for shares."""
    return Axis(label, limits=(-0.02, 1.02))


def symlog(values: ArrayLike) -> np.ndarray:
    """Return sign(x) log10(1 + |x|), which is linear near zero and logarithmic elsewhere."""
    values = np.asarray(values, np.float64)
    return np.sign(values) * np.log10(1.0 + np.abs(values))


def symlog_axis(label: str, low: float, high: float) -> Axis:
    """Return an axis of `symlog` values, with ticks at zero and at powers of ten."""
    largest = int(np.ceil(np.log10(1.0 + max(abs(low), abs(high)))))
    apart = max(1, -(-largest // 4))
    ticks = [(0.0, "0")]
    for power in range(apart, largest + 1, apart):
        place, name = float(symlog(10.0**power)), f"10{str(power).translate(_RAISED)}"
        ticks = [(-place, f"\N{MINUS SIGN}{name}")] * (low < 0) + ticks
        ticks += [(place, name)] * (high > 0)
    return Axis(label, ticks=tuple(ticks))


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
