"""Conversion of panels to plots of an HTML page, in the common style of all figures.

Plots are plain dictionaries, which plotly's JavaScript draws in the browser.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.figures.elements import (
    STEPS,
    Axis,
    Interval,
    Key,
    Line,
    Panel,
    Points,
    Rule,
    Style,
)
from experiments.figures.style import FAINT, INK
from experiments.report.blocks import Plots
from experiments.runs.log import escaped

_GRID = "#e6e6e6"
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
SVG_DASHES = {"-": "none", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_LARGE = 10_000  # value from which ticks are in thousands
_DIGITS = 7  # significant digits of numbers, about the precision of float32

Trace = dict[str, Any]


def block(
    panels: Sequence[Panel | None],
    title: str = "",
    styles: Mapping[str, Style] | None = None,
    more: Sequence[Key] = (),
) -> Plots:
    """Return the panels that are not None as plots, with a legend if there are several labels."""
    shown = [panel for panel in panels if panel is not None]
    if styles is None:
        styles = {}
        for mark in (mark for panel in shown for mark in panel.marks):
            styles.setdefault(mark.label, mark.style)
    legend = [Key(*each) for each in styles.items() if len(styles) > 1]
    return Plots(shown, [*legend, *more], title)


def to_plotly(panel: Panel) -> dict[str, Any]:
    """Return the data and layout of a plot, with marks in the order of their zorder.

    Texts are `plain`; "meta" of a trace is its arm.
    """
    traces = []
    for mark in sorted(panel.marks, key=lambda mark: mark.style.get("zorder", 3)):
        if isinstance(mark, Line):
            traces += _line(mark)
        elif isinstance(mark, Points):
            traces.append(_points(mark))
        else:
            traces.append(_interval(mark))
    own = _layout(panel.x.label, panel.y.label)
    own["shapes"] = [_rule(rule) for rule in panel.rules]
    # Ticks are in thousands or millions if numbers are large.
    if panel.x.label != STEPS:
        own["xaxis"]["tickformat"] = _ticks(traces, "x")
    own["yaxis"]["tickformat"] = _ticks(traces, "y")
    for name, axis in (("xaxis", panel.x), ("yaxis", panel.y)):
        own[name] |= _axis(axis)
    return plain({"data": traces, "layout": own})


def plain(value: Any) -> Any:
    """Return nested values for plotly, with every text escaped and line breaks kept."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, str):
        return value
    return html.escape(escaped(value), quote=False).replace("\n", "<br>")


def numbers(values: ArrayLike) -> list[float | None]:
    """Return numbers for JSON, with None in place of values that are not finite."""
    return [
        float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
        for value in np.asarray(values, np.float64).tolist()
    ]


def to_script(value: Any) -> str:
    """Return JSON for a script element, escaped so that no text can close the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _layout(x: str, y: str) -> dict[str, Any]:
    """Return a plotly layout with labels of both axes."""
    axis = {
        "gridcolor": _GRID, "zeroline": False, "linecolor": FAINT, "automargin": True,
        "ticks": "outside", "tickcolor": FAINT, "tickfont": {"size": 11}, "nticks": 6,
    }  # fmt: skip
    x_axis = axis | {"showgrid": False, "title": _title(x)}
    if x == STEPS:
        x_axis |= {"tickformat": "~s", "hoverformat": ",d", "rangemode": "tozero"}
    return {
        "xaxis": x_axis,
        "yaxis": axis | {"title": _title(y)},
        "margin": {"l": 8, "r": 14, "t": 32, "b": 8},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "rgba(255,255,255,0)",  # transparent, since the title is behind it
        "plot_bgcolor": "rgba(255,255,255,0)",
        "modebar": {"bgcolor": "rgba(255,255,255,0)", "color": FAINT, "activecolor": INK},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"namelength": -1},
    }


def _rule(rule: Rule) -> dict[str, Any]:
    """Return a rule as a plotly shape."""
    own, other = ("x", "y") if rule.upright else ("y", "x")
    ends = {f"{own}0": rule.value, f"{own}1": rule.value, f"{other}0": 0, f"{other}1": 1}
    shape = {
        "type": "line", "layer": "below", f"{own}ref": own, f"{other}ref": "paper", **ends,
        "line": {"color": FAINT, "width": 1, "dash": "dash"},
    }  # fmt: skip
    font = {"size": 10, "color": FAINT}
    label = {"text": rule.text, "textposition": "start", "yanchor": "top", "font": font}
    return shape | ({"label": label} if rule.text else {})


def _line(line: Line) -> list[Trace]:
    style, colour = line.style, line.style["color"]
    stroke = {"color": colour, "dash": _DASHES[style["linestyle"]], "width": style["linewidth"]}
    value = "%{y:.4~g} at %{x:,}"
    own: dict[str, Any] = {"mode": "lines", "line": stroke}
    own["hovertemplate"] = f"{line.note}: {value}" if line.note else value
    if line.steps:
        own["line"] = stroke | {"shape": "hv"}
    if line.texts:
        own |= {"text": [*line.texts], "hovertemplate": "%{text}"}
    if line.bars or np.size(line.x) == 1:
        crossed = [at in line.crossed for at in range(np.size(line.x))]
        marker = {"color": colour, "size": [10 if each else 6 for each in crossed]}
        marker["symbol"] = ["x" if each else "circle" for each in crossed]
        own |= {"mode": "lines+markers", "marker": marker}
    found = [_trace(line.label, line.x, line.y) | own]
    if line.low is None or line.high is None:
        return found
    x, y, low, high = (np.asarray(v, np.float64) for v in (line.x, line.y, line.low, line.high))
    if line.bars or len(x) == 1:
        text = "%{text}: " if line.texts else ""
        found[0] |= {
            "hovertemplate": text + "%{y:.4~g} [%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]",
            "customdata": [[*ends] for ends in zip(numbers(low), numbers(high), strict=True)],
            "error_y": _bars(y - low, high - y, colour, {"thickness": 1, "width": 3}),
        }
        return found
    around = _trace(line.label, np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]]))
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    around |= {
        "mode": "lines", "line": {"width": 0}, "fill": "toself", "hoverinfo": "skip",
        "fillcolor": f"rgba({red},{green},{blue},0.15)",
    }  # fmt: skip
    return [around, *found]


def _points(own: Points) -> Trace:
    marker: dict[str, Any] = {"size": 7, "opacity": own.opacity}
    if own.ring:
        marker |= {"symbol": "circle-open", "size": 13, "line": {"width": 2}}
    hover = "%{text}" if own.texts else "(%{x:.4~g}, %{y:.4~g})"
    trace = _trace(own.label, own.x, own.y) | _markers(own.style, marker, hover)
    return trace | ({"text": [*own.texts]} if own.texts else {})


def _interval(own: Interval) -> Trace:
    colour, text = own.style["color"], own.text or own.note
    hover = "%{x:.4~g} [%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]" + (text and f", {text}")
    marker = {"size": 10, "line": {"color": colour, "width": 2}}
    marker |= {"color": "#ffffff"} if own.hollow else {}
    bars = _bars(
        [own.value - own.low], [own.high - own.value], colour, {"thickness": 2, "width": 0}
    )
    trace = _trace(own.label, [own.value], [own.row]) | _markers(own.style, marker, hover)
    return trace | {"customdata": [numbers([own.low, own.high])], "error_x": bars}


def _markers(style: Style, marker: dict[str, Any], hover: str) -> Trace:
    """Return a trace of markers; `hover` is plotly's template of the tooltip."""
    marker = {"color": style["color"]} | marker
    return {"mode": "markers", "marker": marker, "hovertemplate": hover}


def _trace(label: str, x: ArrayLike, y: ArrayLike) -> Trace:
    own = {"type": "scatter", "name": label, "meta": label}
    return own | {"x": numbers(x), "y": numbers(y)}


def _bars(below: ArrayLike, above: ArrayLike, colour: str, look: dict[str, Any]) -> dict[str, Any]:
    ends = {"array": numbers(above), "arrayminus": numbers(below)}
    return {"type": "data", "symmetric": False, "color": colour, **ends, **look}


def _axis(axis: Axis) -> dict[str, Any]:
    own: dict[str, Any] = {"type": "log", "tickformat": "~g", "nticks": 5} if axis.log else {}
    if axis.whole:
        own |= {"rangemode": "tozero", "tickformat": ",d"}
    if axis.limits is not None:
        own["range"] = [math.log10(end) if axis.log else end for end in axis.limits]
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        own |= {
            "tickmode": "array",
            "tickvals": list(places),
            "ticktext": list(names),
        }
    if axis.limits is not None and axis.ticks:
        own["showgrid"] = False  # rows of intervals
    return own


def _ticks(traces: Sequence[Trace], name: str) -> str:
    """Return the format of ticks, in thousands or millions if numbers are large."""
    values = [abs(value) for trace in traces for value in trace[name] if value is not None]
    return "~s" if max(values, default=0) >= _LARGE else "~g"


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 12}, "standoff": 8}
