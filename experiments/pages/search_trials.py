"""Sections of a search's page with what was tried: scores as they came, and against settings."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.axes import logarithmic
from experiments.pages import plots
from experiments.pages.blocks import Lines, Plot, Plots, Section, Table
from experiments.pages.swept import Swept
from experiments.studies import search_report

_MOST_NAMED = 20  # trials that failed
_RING = {"symbol": "circle-open", "size": 13, "opacity": 1.0, "line": {"width": 2}}


def tried(swept: Swept) -> Section | None:
    """Return the score of every trial with the best so far, and how the scores are spread."""
    if swept.tried is None or swept.tried.empty:
        return None
    header, *cells = search_report.spread(swept.tried)
    several = len(swept.envs) > 1
    rows = [[name if several else name.partition(" ")[2], *rest] for name, *rest in cells]
    drawn = [_in_order(swept, env) for env in _scored(swept)]
    blocks: list[Any] = [Table([header, *rows])]
    if drawn:
        blocks.append(Plots(drawn, _legend(swept)))
    lost = swept.tried[swept.tried["failed"] != ""].drop_duplicates("point")
    lines = [f"{row.point}: {row.failed}" for row in lost.itertuples()]
    if len(lines) > _MOST_NAMED:
        lines = [*lines[:_MOST_NAMED], f"and {len(lines) - _MOST_NAMED} more, in study.json"]
    if lines:
        blocks.append(Lines([f"Failed: {line}" for line in lines]))
    budget = search_report.budget(swept.store.facts["search"]["asked"])
    intro = (
        f"{budget} A dot is the score of a trial, the IQM over these seeds; the line is the best "
        "so far."
    )
    return Section("trials", "What was tried", intro, blocks)


def against_settings(swept: Swept) -> Section | None:
    """Return the score of every trial against each setting, a plot for each task."""
    if swept.tried is None or not (envs := _scored(swept)):
        return None
    linear = search_report.linear(swept.store)
    drawn = {
        name: [p for env in envs if (p := _against(swept, env, name, name in linear)) is not None]
        for name in swept.settings
    }
    drawn = {name: own for name, own in drawn.items() if own}
    if not drawn:
        return None
    if len(envs) > 1:
        blocks = [Plots(own, _legend(swept), name) for name, own in drawn.items()]
    else:  # side by side
        own = [plot._replace(title=name) for name, (plot,) in drawn.items()]
        blocks = [Plots(own, _legend(swept))]
    intro = (
        "Every trial's score against each of its settings, on the seeds that choose; each "
        "method's best is ringed. All settings vary at once, so that one alone explains a part of "
        "the spread."
    )
    return Section("settings-swept", "Scores against settings", intro, blocks)


def _scored(swept: Swept) -> list[str]:
    """Return the tasks of which a trial has a score."""
    return list(dict.fromkeys(swept.tried.loc[swept.tried["score"].notna(), "env"]))


def _legend(swept: Swept) -> list[Any]:
    """Return lines for the methods that have trials."""
    searched_for = set(swept.tried["replay"])
    return plots.legend({k: style for k, style in swept.styles.items() if k in searched_for})


def _in_order(swept: Swept, env: str) -> Plot:
    traces = []
    metric = swept.study.metric(env)
    own = swept.tried[swept.tried["env"] == env]
    for label, part in own.groupby("replay", sort=False):
        style = swept.styles[str(label)]
        number, scores = part["trial"] + 1, part["score"]
        so_far = (scores.cummax() if metric.higher_is_better else scores.cummin()).ffill()
        line = plots.line(str(label), number, so_far, style, line={"shape": "hv"})
        hover = "best so far: %{y:.4~g}, after trial %{x}"
        known = part[scores.notna()]
        x = list(known["trial"] + 1)
        traces += [line | {"hovertemplate": hover}, _dots(swept, str(label), known, x)]
    layout = plots.layout("trial", f"{metric.name} ({metric.unit})", xaxis={"rangemode": "tozero"})
    return plots.plot(env, traces, layout, 320)


def _against(swept: Swept, env: str, name: str, linear: bool) -> Plot | None:
    table = swept.tried
    own = table[(table["env"] == env) & table[name].notna() & table["score"].notna()]
    if own.empty:
        return None
    axis, place = _places(list(own[name]), linear)
    metric, traces = swept.study.metric(env), []
    for label, part in own.groupby("replay", sort=False):
        traces.append(_dots(swept, str(label), part, [place(value) for value in part[name]]))
        scores = part["score"]
        best = part.loc[[scores.idxmax() if metric.higher_is_better else scores.idxmin()]]
        x = [place(value) for value in best[name]]
        traces.append(_dots(swept, str(label), best, x, **_RING))
    layout = plots.layout(name, f"{metric.name} ({metric.unit})", xaxis=axis)
    return plots.plot(env, traces, layout, 320)


def _dots(
    swept: Swept, label: str, part: pd.DataFrame, x: Sequence[float], **marker: Any
) -> plots.Trace:
    """Return trials as points, which tell their settings under the pointer."""
    names = [plots.shown(swept.point_settings(point)) for point in part["point"]]
    hover = "%{y:.4~g}, trial %{customdata[0]}: %{customdata[1]}"
    told = [[int(trial) + 1, name] for trial, name in zip(part["trial"], names, strict=True)]
    return plots.points(
        label, x, part["score"], swept.styles[label], hover,
        marker={"size": 7, "opacity": 0.6} | marker, customdata=told,
    )  # fmt: skip


def _places(values: Sequence[Any], linear: bool) -> tuple[dict[str, Any], Callable[[Any], float]]:
    """Return the horizontal axis for a setting's values, and where one stands."""
    if all(isinstance(value, (int, float, np.number)) for value in values):
        log = {"type": "log", "dtick": 1, "tickformat": "~g"}
        return (log if logarithmic(values) and not linear else {}), float
    every = sorted(set(map(str, values)))
    ticks = {
        "tickvals": list(range(len(every))), "ticktext": [plots.shown(each) for each in every],
        "tickmode": "array",
    }  # fmt: skip
    return ticks, lambda value: float(every.index(str(value)))
