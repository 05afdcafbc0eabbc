"""Sections on the time that runs, and the methods of a study, took."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.figures.elements import STEPS, Axis, Line, Panel, Styles
from experiments.report import plots
from experiments.report.blocks import Section, Table
from experiments.studies import costs
from experiments.studies.costs import Cost
from experiments.studies.results import Results

_INTRO = (
    "Training: of all seeds together, with evaluations. Start-up: before training began, with the "
    "warm-up. Compilation is the time that JAX recorded for tracing, lowering, compiling "
    "and loading programs; its share is of start-up and training together."
)


def of_runs(
    timing: Mapping[str, pd.DataFrame],
    summaries: Mapping[str, Mapping[str, Any]],
    styles: Styles,
) -> Section | None:
    """Return the section with seconds and steps per second of every arm, by label."""
    labels = list(dict.fromkeys([*timing, *summaries]))
    if not labels:
        return None
    header = [
        "arm", "training (s)", "steps/s (median)", "start-up (s)", "first log point (s)",
        "compilation (s)", "of all time",
    ]  # fmt: skip
    rows = [_row(label, timing.get(label), summaries.get(label)) for label in labels]
    drawn = [plots.block([_speed(timing, styles)], "", styles)] if timing else []
    return Section("time", "Time", _INTRO, [Table([header, *rows]), *drawn])


def of_study(results: Results) -> Section:
    """Return the section with runs, steps, seconds and compilation by task and method."""
    found = costs.by_method(results.store)
    header = [
        "", "runs", "agent steps", "updates", "device seconds", "seconds per run",
        "compilation (s)", "of all time",
    ]  # fmt: skip
    several = len(results.envs) > 1
    rows = [
        _cost(f"{env} {label}" if several else label, cost) for (env, label), cost in found.items()
    ]
    total = Cost(*(sum(each) for each in zip(*found.values(), strict=True)))
    intro = (
        "Seconds are those of one device, shared between the runs of a program. Compilation is "
        "their wait for the training loop to be compiled or loaded."
    )
    return Section("time", "Compute", intro, [Table([header, *rows, _cost("all", total)])])


def _speed(timing: Mapping[str, pd.DataFrame], styles: Styles) -> Panel:
    lines = [
        Line(label, own["step"], own["steps_per_second"], styles[label])
        for label, own in timing.items()
    ]
    most = max(float(own["steps_per_second"].max()) for own in timing.values())
    y = Axis("agent steps per second", limits=(0.0, 1.05 * most))
    return Panel("Speed", Axis(STEPS), y, lines, height=290, wide=True)


def _row(label: str, timing: pd.DataFrame | None, summary: Mapping[str, Any] | None) -> list[str]:
    cells = [label, *["-"] * 6]
    if timing is not None:
        seconds, speed = timing["seconds"], timing["steps_per_second"]
        cells[1:3] = f"{seconds.sum():,.1f}", f"{speed.median():,.0f}"
        cells[4] = f"{seconds.iloc[0]:,.1f}"
        if {"start_up", "compiling"} <= set(timing):  # recorded times
            start_up, compiling = timing["start_up"].sum(), timing["compiling"].sum()
            cells[3], cells[5] = f"{start_up:,.1f}", f"{compiling:,.1f}"
            cells[6] = f"{100 * compiling / (start_up + seconds.sum()):.0f} %"
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
