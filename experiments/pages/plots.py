"""Traces and layouts of plotly with the look of all our figures; specifications as plain values.

Specifications are plain dictionaries: plotly's JavaScript draws them in the browser.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from experiments.analysis.style import FAINT, INK, styles_of
from experiments.pages.blocks import Key, Plot

STEPS = "agent steps"
_GRID = "#e6e6e6"
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_SVG_DASHES = {"-": "none", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_LARGE = 10_000  # from here on, ticks count thousands
_DIGITS = 7  # of every number: about what float32 holds

Style = Mapping[str, Any]
Trace = dict[str, Any]


def styles(arms: Mapping[str, str]) -> dict[str, Style]:
    """Return the style of every arm, that of its method in all figures.

    Args:
      arms: the replay method behind each label, the baseline first.
    """
    return styles_of(arms)


def legend(own: Mapping[str, Style]) -> list[Key]:
    """Return the lines of a legend; one arm alone needs none."""
    if len(own) < 2:
        return []
    return [
        Key(label, style["color"], _SVG_DASHES[style["linestyle"]], style["linewidth"])
        for label, style in own.items()
    ]


def shown(text: str) -> str:
    """Return a text of the user's as plotly shows it: without markup of its own."""
    return html.escape(" ".join(text.split()), quote=False)


def line(label: str, x: ArrayLike, y: ArrayLike, style: Style, **more: Any) -> Trace:
    """Return a line; the value under the pointer is shown with the arm's name."""
    line = {
        "color": style["color"],
        "dash": _DASHES[style["linestyle"]],
        "width": style["linewidth"],
    }
    return {
        "type": "scatter",
        "mode": "lines",
        "name": shown(label),
        "meta": label,
        "x": numbers(x),
        "y": numbers(y),
        "line": line | more.pop("line", {}),
        "hovertemplate": "%{y:.4~g} at %{x:,}",
        **more,
    }


def band(label: str, x: ArrayLike, low: ArrayLike, high: ArrayLike, style: Style) -> Trace:
    """Return the area between two curves."""
    x, low, high = (np.asarray(values, np.float64) for values in (x, low, high))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": shown(label),
        "meta": label,
        "x": numbers(np.concatenate([x, x[::-1]])),
        "y": numbers(np.concatenate([high, low[::-1]])),
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": transparent(style["color"], 0.15),
        "hoverinfo": "skip",
    }


def points(label: str, x: ArrayLike, y: ArrayLike, style: Style, hover: str, **more: Any) -> Trace:
    """Return points.

    Args:
      label: the arm that they belong to.
      x: horizontal places.
      y: vertical places.
      style: of the arm.
      hover: what is shown under the pointer, as plotly has templates.
      **more: `marker` and further properties of the trace.
    """
    marker = {"color": style["color"], "size": 6} | more.pop("marker", {})
    return {
        "type": "scatter",
        "mode": "markers",
        "name": shown(label),
        "meta": label,
        "x": numbers(x),
        "y": numbers(y),
        "marker": marker,
        "hovertemplate": hover,
        **more,
    }


def layout(x: str, y: str, *, share: bool = False, **more: Any) -> dict[str, Any]:
    """Return a layout with both axes labelled.

    Args:
      x: label of the horizontal axis, with its unit.
      y: label of the vertical axis, with its unit.
      share: the vertical axis shows [0, 1].
      **more: `xaxis` and `yaxis` with further properties, and shapes.
    """
    axis = {
        "gridcolor": _GRID, "zeroline": False, "linecolor": FAINT, "automargin": True,
        "ticks": "outside", "tickcolor": FAINT, "tickfont": {"size": 11},
    }  # fmt: skip
    x_axis = axis | {"showgrid": False, "title": _title(x), "nticks": 6}
    if x == STEPS:
        x_axis |= {"tickformat": "~s", "hoverformat": ",d", "rangemode": "tozero"}
    y_axis = axis | {"title": _title(y), "nticks": 6}
    if share:
        y_axis |= {"range": [-0.02, 1.02]}
    return {
        "xaxis": x_axis | more.pop("xaxis", {}),
        "yaxis": y_axis | more.pop("yaxis", {}),
        "margin": {"l": 8, "r": 14, "t": 32, "b": 8},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "rgba(255,255,255,0)",  # the title stands behind
        "plot_bgcolor": "rgba(255,255,255,0)",
        "modebar": {"bgcolor": "rgba(255,255,255,0)", "color": FAINT, "activecolor": INK},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"namelength": -1},
        **more,
    }


def plot(
    title: str,
    traces: list[Trace],
    layout: dict[str, Any],
    height: int = 270,
    *,
    wide: bool = False,
) -> Plot:
    """Return a plot, its vertical axis in thousands and millions where numbers are large."""
    values = [abs(y) for trace in traces for y in trace["y"] if y is not None]
    usual = {"tickformat": ticks(values)}
    layout = layout | {"yaxis": usual | layout["yaxis"]}
    return Plot(title, traces, layout, height, wide)


def ticks(values: Sequence[float]) -> str:
    """Return how ticks of these magnitudes are written: in thousands and millions if large."""
    return "~s" if max(values, default=0) >= _LARGE else "~g"


def threshold(value: float, text: str = "", *, upright: bool = False) -> dict[str, Any]:
    """Return a thin dashed line across a plot."""
    own, other = ("x", "y") if upright else ("y", "x")
    ends = {f"{own}0": value, f"{own}1": value, f"{other}0": 0, f"{other}1": 1}
    shape = {
        "type": "line", "layer": "below", f"{own}ref": own, f"{other}ref": "paper", **ends,
        "line": {"color": FAINT, "width": 1, "dash": "dash"},
    }  # fmt: skip
    if text:
        label = {
            "text": text,
            "textposition": "start",
            "yanchor": "top",
            "font": {"size": 10, "color": FAINT},
        }
        shape["label"] = label
    return shape


def means(frame: pd.DataFrame, column: str) -> pd.Series:
    """Return a metric's mean over seeds, by agent step, where it has a value."""
    return frame.groupby("step")[column].mean().dropna()


def numbers(values: ArrayLike) -> list[float | None]:
    """Return numbers as JSON has them: None for what is not finite."""
    return [
        float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
        for value in np.asarray(values, np.float64).tolist()
    ]


def transparent(colour: str, opacity: float) -> str:
    """Return a colour `#rrggbb` at an opacity."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def to_script(value: Any) -> str:
    """Return JSON that can stand inside a script of a page, whatever its texts are."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _title(text: str) -> dict[str, Any]:
    return {"text": shown(text), "font": {"size": 12}, "standoff": 8}


def in_order(own: Mapping[str, Style]) -> Sequence[str]:
    """Return labels in the order of drawing: the wide line of uniform replay below the others."""
    return sorted(own, key=lambda label: own[label]["zorder"])
