"""The section of time: how fast the arms were, and what compilation took of it."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from experiments.pages import plots
from experiments.pages.blocks import Plots, Section, Table
from experiments.pages.groups import Group
from experiments.pages.source import Arm, Source

_RECORDED = frozenset({"start_up", "compiling"})  # columns of `timing.csv` since they are kept


def section(source: Source, groups: Sequence[Group]) -> Section | None:
    """Return seconds and steps per second of every arm."""
    rows = [_row(label, arm) for label, arm in source.arms.items()]
    rows = [row for row in rows if row]
    if not rows:
        return None
    header = [
        "arm", "training (s)", "steps/s (median)", "start-up (s)", "first log point (s)",
        "compilation (s)", "of all time",
    ]  # fmt: skip
    blocks: list[Table | Plots] = [Table([header, *rows])]
    for group in groups:
        traces = [
            plots.line(label, timing["step"], timing["steps_per_second"], group.styles[label])
            for label in plots.in_order(group.styles)
            if (timing := group.arms[label].timing) is not None
        ]
        if traces:
            layout = plots.layout(
                plots.STEPS, "agent steps per second", yaxis={"rangemode": "tozero"}
            )
            drawn = plots.plot("Speed", traces, layout, 290, wide=True)
            blocks.append(Plots([drawn], plots.legend(group.styles), group.title))
    intro = f"Training: of all seeds together, evaluations included. {_kinds(source)}"
    return Section("time", "Time", intro, blocks)


class Compilation(NamedTuple):
    """What of a run's time went into making programs."""

    seconds: float
    total: float  # start-up and training
    recorded: bool  # else an estimate


def compilation(timing: pd.DataFrame) -> Compilation | None:
    """Return what compilation took: as it was recorded, or else by estimate.

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


def _kinds(source: Source) -> str:
    """Say how it is known what compilation took, of the arms whose times are there."""
    known = {set(arm.timing) >= _RECORDED for arm in source.arms.values() if arm.timing is not None}
    lines = []
    if True in known:
        lines.append(
            "Start-up is what passed before training began, the warm-up among it; compilation is "
            "what JAX recorded while tracing, lowering and compiling, or loading programs that "
            "were kept, and its share is of start-up and training together."
        )
    if False in known:
        whose = "" if len(known) == 1 else " of arms whose start-up is not known"
        lines.append(
            f"Compilation{whose} was not recorded, and is estimated (~): what the first log point "
            "took beyond what as many steps take later. That is too little where the warm-up is "
            "long, for its steps learn nothing."
        )
    return " ".join(lines)


def _row(label: str, arm: Arm) -> list[str] | None:
    if arm.timing is None and arm.summary is None:
        return None
    cells = [label, *["-"] * 6]
    if arm.timing is not None:
        seconds, speed = arm.timing["seconds"], arm.timing["steps_per_second"]
        cells[1:3] = f"{seconds.sum():,.1f}", f"{speed.median():,.0f}"
        if "start_up" in arm.timing:
            cells[3] = f"{arm.timing['start_up'].sum():,.1f}"
        cells[4] = f"{seconds.iloc[0]:,.1f}"
        if (found := compilation(arm.timing)) is not None:
            about = "" if found.recorded else "~"
            cells[5] = f"{about}{found.seconds:,.1f}"
            cells[6] = f"{about}{100 * found.seconds / found.total:.0f} %"
    if arm.summary is not None:
        seconds, speed = arm.summary["train_seconds"], arm.summary["steps_per_second"]
        cells[1], cells[2] = f"{seconds:,.1f}", f"{speed:,.0f}"
    return cells
