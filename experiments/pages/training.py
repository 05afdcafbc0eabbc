"""The sections of what happened during training: what was replayed, priorities, own metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import panels, verdicts
from experiments.analysis.axes import DIVERGED
from experiments.analysis.style import FAINT
from experiments.pages import metrics, plots, scales
from experiments.pages.blocks import Key, Plot, Plots, Section
from experiments.pages.groups import Group
from experiments.pages.metrics import Name
from experiments.pages.plots import Style
from experiments.pages.source import Arm
from experiments.training.inspection import ODDS_EDGES

_UNITS = {
    "abs_td": "|TD error|, return", "td_std": "std, return", "q_value": "Q, return",
    "q_std": "std, return", "age": "agent steps", "distinct": "share",
    "effective_buffer": "1 / (N ΣP²)",
}  # fmt: skip
_GATES = {
    "replayed/effective_buffer": verdicts.UNIFORM_BUFFER,
    "replay/sampler_updates": verdicts.FEWEST_UPDATES,
}
_PRIORITIES = ("priority_p10", "priority_p50", "priority_p90", "mean_priority", "max_priority")
_REFER = "refer"


def replayed(groups: Sequence[Group]) -> Section | None:
    """Return what was replayed beside what was stored, as in `replayed.png`."""
    blocks = []
    for group in groups:
        drawn = [
            plot
            for column, title in panels.PANELS.items()
            if (plot := _replayed(group, column, title))
        ]
        if odds := _odds(group):
            drawn.append(odds)
        if drawn:
            keys = [*plots.legend(group.styles), Key("", FAINT, "2 3", 1.0)]
            blocks.append(Plots(drawn, keys, group.title))
    intro = (
        "Means over seeds. Solid: of all updates between two log points. Dotted and thin: of the "
        "stored transitions, drawn uniformly at the log point. The dashed line is the gate: an arm "
        "that uses more of the buffer behaved like uniform replay."
    )
    return _section("replayed", "What was replayed, beside what was stored", intro, blocks)


def priorities(groups: Sequence[Group]) -> Section | None:
    """Return the quantiles of the stored priorities over training, a plot for each arm."""
    blocks = []
    for group in groups:
        columns = [f"replay/{name}" for name in _PRIORITIES]
        drawn = [
            _quantiles(label, arm, group.styles[label])
            for label, arm in group.having(*columns).items()
        ]
        if drawn:
            blocks.append(Plots(drawn, title=group.title))
    intro = (
        "Of the stored transitions, means over seeds: the band holds the middle four fifths, the "
        "line is the median, dashes the mean, dots the largest."
    )
    return _section("priorities", "Priorities", intro, blocks)


def of_method(groups: Sequence[Group]) -> Section | None:
    """Return what the replay methods say of themselves, but for priorities."""
    own = {f"replay/{name}" for name in _PRIORITIES}
    intro = "Means over seeds."
    if any(group.having("replay/sampler_updates") for group in groups):
        intro += " The dashed line is the gate of learned samplers."
    title = "Metrics of the replay methods"
    return _own(groups, "replay/", own, "method", title, intro)


def of_agent(groups: Sequence[Group]) -> Section | None:
    """Return what the agent says of itself."""
    return _own(groups, "agent/", set(), "agent", "Metrics of the agent", "Means over seeds.")


def _own(
    groups: Sequence[Group], prefix: str, without: set[str], name: str, title: str, intro: str
) -> Section | None:
    blocks = []
    for group in groups:
        frames = [arm.frame for arm in group.arms.values() if arm.frame is not None]
        columns = {column: None for frame in frames for column in frame}
        drawn = []
        for column in columns:
            if column.startswith(prefix) and column not in without:
                drawn += _over_training(group, column)
        if drawn:
            blocks.append(Plots(drawn, plots.legend(group.styles), group.title))
    return _section(name, title, intro, blocks)


def _over_training(group: Group, column: str) -> list[Plot]:
    """Return a metric over training: one plot, or two where its name stands for two things."""
    arms = {label: arm for label, arm in group.having(column).items() if arm.frame[column].any()}
    if column != "replay/beta":
        return [_means(group, arms, column, metrics.name(column))] if arms else []
    split = {
        metrics.BETA: {label: arm for label, arm in arms.items() if arm.replay == _REFER},
        metrics.EXPONENT: {label: arm for label, arm in arms.items() if arm.replay != _REFER},
    }
    return [_means(group, own, column, name) for name, own in split.items() if own]


def _means(group: Group, arms: Mapping[str, Arm], column: str, name: Name) -> Plot:
    values = {label: plots.means(arm.frame, column) for label, arm in arms.items()}
    least = min(each.min() for each in values.values())
    most = max(each.max() for each in values.values())
    far = max(-least, most) > DIVERGED and not name.share
    traces = []
    for label, each in values.items():
        drawn = scales.symlog(each) if far else each
        more: dict[str, Any] = {}
        if far:
            more = {"customdata": plots.numbers(each), "hovertemplate": "%{customdata:.3~g}"}
        traces.append(plots.line(label, each.index, drawn, group.styles[label], **more))
    gate = _GATES.get(column)
    layout = plots.layout(
        plots.STEPS, name.unit, share=name.share,
        shapes=[] if gate is None else [plots.threshold(gate, "gate")],
        yaxis=scales.ticks(least, most) if far else {},
    )  # fmt: skip
    return plots.plot(name.title, traces, layout)


def _replayed(group: Group, column: str, title: str) -> Plot | None:
    arms = group.having(f"replayed/{column}")
    if not arms:
        return None
    traces = []
    for label, arm in arms.items():
        style = group.styles[label]
        means = plots.means(arm.frame, f"replayed/{column}")
        traces.append(plots.line(label, means.index, means, style))
        if f"stored/{column}" in arm.frame:
            stored = plots.means(arm.frame, f"stored/{column}")
            thin = {"dash": "dot", "width": 1}
            hover = "stored: %{y:.4~g} at %{x:,}"
            traces.append(
                plots.line(label, stored.index, stored, style, line=thin, hovertemplate=hover)
            )
    gate = _GATES.get(f"replayed/{column}")
    layout = plots.layout(
        plots.STEPS, _UNITS[column], share=column in panels.SHARES,
        shapes=[] if gate is None else [plots.threshold(gate, "gate")],
    )  # fmt: skip
    return plots.plot(title, traces, layout)


def _odds(group: Group) -> Plot | None:
    """Return how many of the stored are how much likelier than uniform, at the last log point."""
    names = [f"replayed/odds_{number}" for number in range(len(ODDS_EDGES) + 1)]
    width = ODDS_EDGES[1] - ODDS_EDGES[0]
    edges = np.array([ODDS_EDGES[0] - width, *ODDS_EDGES, ODDS_EDGES[-1] + width])
    traces = []
    for label, arm in group.having(*names).items():
        frame = arm.frame
        if not set(names) <= set(frame):
            continue
        shares = frame[frame["step"] == frame["step"].max()][names].mean()
        stairs = [*shares, shares.iloc[-1]]
        hover = "%{y:.3f} of the stored, from %{x}"
        style = group.styles[label]
        shape = {"shape": "hv"}
        traces.append(plots.line(label, edges, stairs, style, line=shape, hovertemplate=hover))
    if not traces:
        return None
    layout = plots.layout("log10 of N P (uniform: 0)", "share", share=True)
    return plots.plot("share of the stored, at the end", traces, layout)


def _quantiles(label: str, arm: Arm, style: Style) -> Plot:
    frame: pd.DataFrame = arm.frame  # `having` saw it
    found = {
        name: plots.means(frame, f"replay/{name}")
        for name in _PRIORITIES
        if f"replay/{name}" in frame
    }
    traces = []
    low, high = found.get("priority_p10"), found.get("priority_p90")
    if low is not None and high is not None:
        traces.append(plots.band(label, low.index, low, high, style))
    for name, dash, width in (
        ("priority_p50", "solid", 2.0), ("mean_priority", "dash", 1.4),
        ("max_priority", "dot", 1.4),
    ):  # fmt: skip
        if (values := found.get(name)) is not None:
            hover = f"{_WORDS[name]} %{{y:.4~g}} at %{{x:,}}"
            shape = {"dash": dash, "width": width}
            traces.append(
                plots.line(label, values.index, values, style, line=shape, hovertemplate=hover)
            )
    least = min(values.min() for values in found.values())
    most = max(values.max() for values in found.values())
    axis = scales.logarithmic(least, most) if least > 0 else {}
    return plots.plot(label, traces, plots.layout(plots.STEPS, "priority", yaxis=axis))


_WORDS = {"priority_p50": "median", "mean_priority": "mean", "max_priority": "largest"}


def _section(name: str, title: str, intro: str, blocks: Sequence[Plots]) -> Section | None:
    return Section(name, title, intro, blocks) if blocks else None
