"""Tables of verdicts, and figures of the differences between arms and their baseline."""

import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.figures.drawing import (
    draw_interval,
    draw_legend,
    draw_rule,
    finish,
    finish_rows,
    row_names,
    whole_ticks,
    write_grid,
)
from experiments.figures.style import FAINT, Styles, plain, styles_of
from experiments.statistics.claims import CONTROL
from experiments.statistics.counts import Counts, log_sign_capital, shown_p
from experiments.statistics.markdown import number, with_interval
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.verdicts import Verdict

_STOPPED = ("not tested", "not comparable")


def cells(rows: Sequence[Verdict], unit: str) -> list[list[str]]:
    """Return the cells of a table with the paired comparison and the verdict of each arm."""
    header = [
        "arm", "effective buffer", "sampler updates", "wins/losses/ties",
        rows[0].quantity, f"better by ({unit}): IQM [95 %]", "p (Holm)",
        "verdict",
    ]  # fmt: skip
    return [header, *map(_cells, rows)]


def claim_cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of a table of claims and verdicts, including the header."""
    header = ["claim", "arm", "against", "wins/losses/ties", "p (Holm)", "verdict"]
    return [header] + [
        [
            row["claim"], row["arm"], row["baseline"],
            f"{row['wins']}/{row['losses']}/{row['ties']}" if "wins" in row else "-",
            "-" if "p" not in row or row["verdict"] in _STOPPED else shown_p(row["p"]),
            row["verdict"],
        ]
        for row in rows
    ]  # fmt: skip


def _cells(row: Verdict) -> list[str]:
    found, counts = row, row.counts
    # A control makes no claim, and its p-value is not corrected.
    p_value = shown_p(found.p_value) + " (raw)" * (row.method == CONTROL)
    return [
        row.label,
        number(found.effective_buffer),
        number(found.sampler_updates),
        f"{counts.wins}/{counts.losses}/{counts.ties}",
        f"{with_interval(found.estimate, found.interval)} at {100 * found.level:.3g} %",
        with_interval(row.pairs["iqm"], row.pairs["iqm_interval"]),
        "-" if found.verdict in _STOPPED else p_value,
        found.verdict,
    ]


def forest(
    rows: Sequence[Verdict],
    methods: Mapping[str, str],
    metric: PrimaryMetric,
    baseline: str,
    path: str | os.PathLike,
    title: str,
) -> None:
    """Plot how often each arm is better than the baseline, with the verdicts' intervals, as PNG.

    Each group of arms (`Verdict.group`) has a panel. Markers of arms that were not tested are
    hollow.
    """
    groups: dict[str, list[Verdict]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    several, styles = len(groups) > 1, styles_of(methods)
    label = improvement_label(rows, "" if several else baseline)
    panels = [
        partial(
            draw_improvement, rows=members, styles=styles, label=label,
            title=group.replace(", ", "\n"),
        )
        for group, members in groups.items()
    ]  # fmt: skip
    lines = 1 + max(name.count("\n") for name in row_names([row.method for row in rows]))
    height = 2.1 + 0.19 * (1 + lines) * max(map(len, groups.values()))
    size = (max(7.0, 4.0 * len(groups)), height)
    few = min(row.seeds for row in rows)
    title = f"{title}, by {metric.name}"
    write_grid(path, title, panels, size, columns=len(groups), seeds=few, dpi=120)


def improvement_label(rows: Sequence[Verdict], baseline: str) -> str:
    """Return the label of the axis of `draw_improvement`, with the levels of the intervals."""
    levels = sorted({row.level for row in rows}, reverse=True)  # arms outside the family: 95 %
    shown = " or ".join(f"{100 * level:.3g} %" for level in levels)
    return f"{rows[0].quantity} [{shown}]" + (f", against {baseline}" if baseline else "")


def draw_improvement(
    axes: Axes, rows: Sequence[Verdict], styles: Styles, label: str, title: str
) -> None:
    """Draw a row for every arm, with the estimate of its verdict, the interval and the verdict."""
    for place, row in enumerate(rows):
        estimate = (row.estimate, *row.interval)
        verdict = row.verdict
        draw_interval(axes, place, estimate, styles[row.label], verdict == "not tested", verdict)
    finish_rows(axes, title, label, [row.method for row in rows], middle=0.5)
    axes.set_xlim(-0.03, 1.03)


def has_differences(rows: Sequence[Verdict]) -> bool:
    """Return whether any arm has a finite difference from the baseline for every seed."""
    return any(row.pairs["iqm_interval"] is not None for row in rows)


def draw_differences(
    axes: Axes, rows: Sequence[Verdict], styles: Styles, label: str, title: str
) -> None:
    """Draw every seed's difference from the baseline, their IQM and its interval.

    Arms with a seed that diverged or never reached the threshold have an empty row.
    """
    for place, row in enumerate(rows):
        style, seeds = styles[row.label], row.pairs["differences"]
        iqm, interval = row.pairs["iqm"], row.pairs["iqm_interval"]
        if seeds is None or iqm is None or interval is None:
            continue
        dots = {"color": style["color"], "markersize": 4.5, "alpha": 0.5}
        axes.plot(seeds, [place + 0.22] * len(seeds), "o", **dots)
        hollow = row.verdict == "not tested"
        draw_interval(axes, place - 0.12, (iqm, *interval), style, hollow)
    finish_rows(axes, title, label, [row.method for row in rows], middle=0.0)


def draw_leads(
    axes: Axes,
    leads: Mapping[str, Sequence[float]],
    decided: Sequence[str],
    styles: Styles,
    alpha: float,
) -> None:
    """Draw wins minus losses after every seed, with a marker at the end for each decided arm.

    Dashed lines are the boundaries at level `alpha` for pairs without ties. An arm beyond a
    boundary is better or worse, whatever the results of other arms. Ties and Holm's method only
    bring the boundaries closer to 0.

    Args:
      axes: the axes.
      leads: label -> wins minus losses after 0, 1, ... seeds.
      decided: labels of the arms that are decided.
      styles: style of each label.
      alpha: level of a single arm.
    """
    for label, lead in leads.items():
        axes.plot(lead, drawstyle="steps-post", label=plain(label), **styles[label])
        if label in decided:
            axes.plot(len(lead) - 1, lead[-1], "o", color=styles[label]["color"], markersize=4.5)
    x = np.arange(1, max(2, *(len(lead) - 1 for lead in leads.values())) + 1)
    edge = np.array([_boundary(int(seeds), alpha) for seeds in x], float)
    for sign in (1, -1):
        axes.plot(x, sign * edge, color=FAINT, linestyle="--", linewidth=1.0)
    draw_rule(axes, 0.0)
    finish(axes, "", "seeds", "wins minus losses")
    whole_ticks(axes, "x")
    draw_legend(axes, columns=4)


def _boundary(seeds: int, alpha: float) -> float:
    """Return the smallest lead (wins minus losses) that rejects mu = 1/2 after `seeds` pairs."""
    for lead in range(seeds % 2, seeds + 1, 2):
        wins = (seeds + lead) // 2
        if log_sign_capital(Counts(wins, 0, seeds - wins)) >= -math.log(alpha):
            return lead
    return math.nan
