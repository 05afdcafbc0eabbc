"""The sections of returns: learning curves, and the last evaluation of every seed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.analysis import statistics, tables
from experiments.analysis.bootstrap import bootstrap_interval, iqm
from experiments.pages import plots
from experiments.pages.blocks import Plot, Plots, Section, Table
from experiments.pages.groups import Group
from experiments.pages.source import Arm, Source

_RETURN = "return (greedy evaluation)"
_CROWD = 4  # more bands than these hide one another
_SPREAD = 0.5  # of an arm's points, in distances between two arms


def curves(source: Source, groups: Sequence[Group]) -> Section | None:
    """Return the learning curves of all arms; of many, also each beside the first."""
    goal = _goal(source)
    blocks = []
    for group in groups:
        traces = {label: _curve(group, label) for label in group.having("eval_return")}
        if not traces:
            continue
        shapes = [plots.threshold(goal, f"{goal:g}")] if goal is not None else []
        layout = plots.layout(plots.STEPS, _RETURN, shapes=shapes)
        together = [each for own in traces.values() for each in own]
        drawn = [
            plots.plot("All arms" if len(traces) > 1 else "", together, layout, 420, wide=True)
        ]
        if len(traces) > _CROWD:
            drawn += _beside_the_first(group, traces, layout)
        blocks.append(Plots(drawn, plots.legend(group.styles), group.title))
    if not blocks:
        return None
    seeds = sorted({arm.frame["seed"].nunique() for arm in _kept(source)})
    intro = f"{_middle(seeds)}, of greedy evaluations at every log point."
    if goal is not None:
        intro += f" The dashed line is the return that counts as solved, {goal:g}."
    return Section("curves", "Learning curves", intro, blocks)


def scores(source: Source, groups: Sequence[Group]) -> Section | None:
    """Return the last evaluation of every arm: all seeds, interquartile mean and interval."""
    rows = {label: summary for label, arm in source.arms.items() if (summary := last(source, arm))}
    if not rows:
        return None
    shown = tables.cells([{**row, "replay": label} for label, row in rows.items()])
    shown[0][0] = "arm"
    blocks: list[Any] = [Table(shown)]
    for group in groups:
        own = {name: rows[arm.label] for name, arm in group.arms.items() if arm.label in rows}
        if own:
            plot = _strip(group, own)
            blocks.append(Plots([plot], plots.legend(group.styles), group.title))
    blocks.append(_of_every_seed(rows))
    intro = "The last greedy evaluation of every seed."
    if any(arm.summary is None for arm in source.arms.values()):
        intro += " Of arms that have not ended, the last so far."
    return Section("scores", "Final scores", intro, blocks)


def last(source: Source, arm: Arm) -> dict[str, Any] | None:
    """Return an arm's summary; of one that has not ended, what it would be now."""
    if arm.summary is not None:
        return arm.summary
    if arm.frame is None or statistics.curves(arm.frame).empty:
        return None
    return statistics.summarise(arm.frame, _goal(source)) | {"steps_per_second": None}


def _goal(source: Source) -> float | None:
    """Return the return that counts as solved, if the arms that have ended agree on one."""
    goals = {arm.summary["threshold"] for arm in source.arms.values() if arm.summary}
    return goals.pop() if len(goals) == 1 else None


def _kept(source: Source) -> list[Arm]:
    return [arm for arm in source.arms.values() if arm.frame is not None]


def _middle(seeds: Sequence[int]) -> str:
    if seeds == [1]:
        return "One seed"
    count = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))
    return f"{'IQM' if seeds[-1] >= 4 else 'Mean'} of {count} seeds with 95 % bootstrap interval"


def _curve(group: Group, label: str) -> list[plots.Trace]:
    table = statistics.curves(group.arms[label].frame).dropna()
    steps, values = table.index.to_numpy(), table.to_numpy().T
    style = group.styles[label]
    traces = []
    if len(values) > 1 and len(steps):
        traces.append(plots.band(label, steps, *bootstrap_interval(values), style))
    return [*traces, plots.line(label, steps, iqm(values), style)]


def _beside_the_first(
    group: Group, traces: dict[str, list[plots.Trace]], layout: dict[str, Any]
) -> list[Plot]:
    first, *others = [label for label in group.arms if label in traces]
    ends = [
        value
        for own in traces.values()
        for trace in own
        for value in trace["y"]
        if value is not None
    ]
    pad = 0.04 * (max(ends) - min(ends) or 1.0)
    same = {"range": [min(ends) - pad, max(ends) + pad]}
    layout = layout | {"yaxis": layout["yaxis"] | same}
    return [
        plots.plot(f"{label} beside {first}", [*traces[first], *traces[label]], layout)
        for label in others
    ]


def _strip(group: Group, rows: dict[str, dict[str, Any]]) -> Plot:
    traces = []
    for place, (label, row) in enumerate(rows.items()):
        style, returns = group.styles[label], row["final_return"]
        middle = (len(returns) - 1) / 2
        offsets = [_SPREAD * (k - middle) / max(len(returns), 2) for k in range(len(returns))]
        values = [np.nan if value is None else value for value in returns]
        marker = {"opacity": 0.5, "size": 7}
        seeds = {"customdata": row["seeds"]}
        hover = "seed %{customdata}: %{y:.4~g}"
        places = [place + offset for offset in offsets]
        traces.append(plots.points(label, places, values, style, hover, marker=marker, **seeds))
        if row["final_iqm"] is not None and None not in row["final_interval"]:
            low, high = row["final_interval"]
            bar = {
                "type": "data", "symmetric": False, "array": [high - row["final_iqm"]],
                "arrayminus": [row["final_iqm"] - low], "color": style["color"], "thickness": 2,
                "width": 8,
            }  # fmt: skip
            traces.append(
                plots.points(
                    label, [place], [row["final_iqm"]], style, "IQM %{y:.4~g}",
                    marker={"symbol": "line-ew-open", "size": 22, "line": {"width": 3}},
                    error_y=bar,
                )
            )  # fmt: skip
    names = [plots.shown(label) for label in rows]
    axis = {
        "tickvals": list(range(len(names))), "ticktext": names, "tickmode": "array",
        "range": [-0.6, len(names) - 0.4],
    }  # fmt: skip
    layout = plots.layout("arm", _RETURN, xaxis=axis)
    return plots.plot("Last evaluation of every seed", traces, layout, 340, wide=len(rows) > 2)


def _of_every_seed(rows: dict[str, dict[str, Any]]) -> Table:
    seeds = sorted({int(seed) for row in rows.values() for seed in row["seeds"]})
    own = [dict(zip(row["seeds"], row["final_return"], strict=True)) for row in rows.values()]
    cells = [["seed", *rows]]
    cells += [[str(seed), *(tables.number(each.get(seed)) for each in own)] for seed in seeds]
    return Table(cells, "Every seed in numbers", folded=True)
