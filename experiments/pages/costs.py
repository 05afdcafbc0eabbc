"""The section of time: how fast the arms were, and what compilation took of it."""

from collections.abc import Sequence

import pandas as pd

from experiments.pages import plots
from experiments.pages.blocks import Plots, Section, Table
from experiments.pages.groups import Group
from experiments.pages.source import Arm, Source


def section(source: Source, groups: Sequence[Group]) -> Section | None:
    """Return seconds and steps per second of every arm."""
    rows = [_row(label, arm) for label, arm in source.arms.items()]
    rows = [row for row in rows if row]
    if not rows:
        return None
    header = ["arm", "training (s)", "steps/s (median)", "first log point (s)", "compilation"]
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
    intro = (
        "Of all seeds together, evaluations included. Compilation is the share of the time by "
        "which the first log point exceeds what as many steps take later: an estimate, too small "
        "where the warm-up is long, for its steps learn nothing."
    )
    return Section("time", "Time", intro, blocks)


def compilation(timing: pd.DataFrame) -> float | None:
    """Return the share of the time that compilation took, by estimate.

    None: there is one log point only, or a warm-up so quick that it hides compilation.

    Args:
      timing: the rows of `timing.csv`.
    """
    if len(timing) < 2:
        return None
    seconds, steps = timing["seconds"].to_numpy(), timing["step"].diff().to_numpy()
    usual = pd.Series(seconds[1:] / steps[1:]).median() * timing["step"].iloc[0]
    share = float((seconds[0] - usual) / seconds.sum())
    return share if share > 0 else None  # the warm-up hid it


def _row(label: str, arm: Arm) -> list[str] | None:
    if arm.timing is None and arm.summary is None:
        return None
    cells = [label, "-", "-", "-", "-"]
    if arm.timing is not None:
        seconds, speed = arm.timing["seconds"], arm.timing["steps_per_second"]
        cells[1:4] = f"{seconds.sum():,.1f}", f"{speed.median():,.0f}", f"{seconds.iloc[0]:,.1f}"
        if (share := compilation(arm.timing)) is not None:
            cells[4] = f"{100 * share:.0f} %"
    if arm.summary is not None:
        seconds, speed = arm.summary["train_seconds"], arm.summary["steps_per_second"]
        cells[1], cells[2] = f"{seconds:,.1f}", f"{speed:,.0f}"
    return cells
