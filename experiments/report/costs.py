"""Sections of time: of runs, and of a study's methods."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments.figures.elements import STEPS, Axis, Line, Panel
from experiments.report import plots
from experiments.report.blocks import Section, Table
from experiments.report.groups import Group
from experiments.report.swept import Swept
from experiments.studies import costs
from experiments.studies.costs import Cost

_RECORDED = frozenset({"start_up", "compiling"})  # columns of `timing.csv` in newer runs


def of_runs(
    timing: Mapping[str, pd.DataFrame],
    summaries: Mapping[str, Mapping[str, Any]],
    groups: Sequence[Group],
) -> Section | None:
    """Return seconds and steps per second of every arm.

    Args:
      timing: rows of `timing.csv` by label.
      summaries: of finished runs, by label.
      groups: of the arms.
    """
    labels = list(dict.fromkeys([*timing, *summaries]))
    if not labels:
        return None
    header = [
        "arm", "training (s)", "steps/s (median)", "start-up (s)", "first log point (s)",
        "compilation (s)", "of all time",
    ]  # fmt: skip
    rows = [_row(label, timing.get(label), summaries.get(label)) for label in labels]
    drawn = [
        plots.block([_speed(group)], group.title, group.styles) for group in groups if group.timing
    ]
    intro = f"Training: of all seeds together, with evaluations. {_kinds(timing.values())}"
    return Section("time", "Time", intro, [Table([header, *rows]), *drawn])


def of_study(swept: Swept) -> Section:
    """Return runs, steps, seconds and compilation of every method on every task."""
    found = costs.by_method(swept.store)
    header = [
        "", "runs", "agent steps", "updates", "device seconds", "seconds per run",
        "compilation (s)", "of all time",
    ]  # fmt: skip
    several = len(swept.envs) > 1
    rows = [
        _cost(f"{env} {label}" if several else label, cost) for (env, label), cost in found.items()
    ]
    total = Cost(*(sum(each) for each in zip(*found.values(), strict=True)))
    intro = (
        "Seconds are those of one device, shared between the runs of a program. Compilation is "
        "their wait for the training loop to be compiled or loaded."
    )
    return Section("time", "Compute", intro, [Table([header, *rows, _cost("all", total)])])


class Compilation(NamedTuple):
    """The part of a run's time that compilation took."""

    seconds: float
    total: float  # start-up and training
    recorded: bool  # else an estimate


def compilation(timing: pd.DataFrame) -> Compilation | None:
    """Return the recorded time of compilation, or else an estimate.

    None: nothing was recorded, and there is one log point only, or a warm-up so quick that it hides
    compilation.

    Args:
      timing: the rows of `timing.csv`.
    """
    seconds, total = timing["seconds"].to_numpy(), float(timing["seconds"].sum())
    if set(timing) >= _RECORDED:
        own = float(timing["compiling"].sum())
        return Compilation(own, total + float(timing["start_up"].sum()), recorded=True)
    if len(timing) < 2:
        return None
    usual = pd.Series(seconds[1:] / timing["step"].diff().to_numpy()[1:]).median()
    beyond = float(seconds[0] - usual * timing["step"].iloc[0])
    return Compilation(beyond, total, recorded=False) if beyond > 0 else None


def _speed(group: Group) -> Panel:
    lines = [
        Line(label, own["step"], own["steps_per_second"], group.styles[label])
        for label, own in group.timing.items()
    ]
    most = max(float(own["steps_per_second"].max()) for own in group.timing.values())
    y = Axis("agent steps per second", limits=(0.0, 1.05 * most))
    return Panel("Speed", Axis(STEPS), y, lines, height=290, wide=True)


def _kinds(timing: Collection[pd.DataFrame]) -> str:
    """Describe how the time of compilation is known."""
    known = {set(own) >= _RECORDED for own in timing}
    lines = []
    if True in known:
        lines.append(
            "Start-up is the time before training began, with the warm-up. Compilation is the time "
            "that JAX recorded for tracing, lowering, compiling and loading programs; its share is "
            "of start-up and training together."
        )
    if False in known:
        whose = "" if len(known) == 1 else " of arms with unknown start-up"
        lines.append(
            f"Compilation{whose} was not recorded. The estimate (~) is the time to the first log "
            "point beyond the usual time of its steps, which is too little after a long warm-up, "
            "whose steps learn nothing."
        )
    return " ".join(lines)


def _row(label: str, timing: pd.DataFrame | None, summary: Mapping[str, Any] | None) -> list[str]:
    cells = [label, *["-"] * 6]
    if timing is not None:
        seconds, speed = timing["seconds"], timing["steps_per_second"]
        cells[1:3] = f"{seconds.sum():,.1f}", f"{speed.median():,.0f}"
        if "start_up" in timing:
            cells[3] = f"{timing['start_up'].sum():,.1f}"
        cells[4] = f"{seconds.iloc[0]:,.1f}"
        if (found := compilation(timing)) is not None:
            about = "" if found.recorded else "~"
            cells[5] = f"{about}{found.seconds:,.1f}"
            cells[6] = f"{about}{100 * found.seconds / found.total:.0f} %"
    if summary is not None:
        seconds, speed = summary["train_seconds"], summary["steps_per_second"]
        cells[1], cells[2] = f"{seconds:,.1f}", f"{speed:,.0f}"
    return cells


def _cost(name: str, cost: Cost) -> list[str]:
    share = f"{100 * cost.compiling / cost.seconds:.0f} %" if cost.seconds else "-"
    return [
        name, f"{cost.runs:,}", f"{cost.steps:,}", f"{cost.updates:,}", f"{cost.seconds:,.0f}",
        f"{cost.seconds / max(cost.runs, 1):,.2f}", f"{cost.compiling:,.0f}", share,
    ]  # fmt: skip
