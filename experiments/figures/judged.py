"""Tables of verdicts, and figures of the differences between arms and their baseline."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.figures import elements
from experiments.figures.drawing import to_matplotlib
from experiments.figures.elements import Axis, Figure, Interval, Panel, Points, Rule, Styles
from experiments.figures.style import styles_of
from experiments.statistics.claims import CONTROL
from experiments.statistics.counts import shown_p
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

    Each group has a panel. Markers of arms that were not tested are hollow.
    """
    groups: dict[str, list[Verdict]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    several, styles = len(groups) > 1, styles_of(methods)
    better = rows[0].quantity + ("" if several else f", against {baseline}")
    panels = [
        improvement(own, styles, better, group.replace(", ", "\n")) for group, own in groups.items()
    ]
    size = (max(7.0, 4.0 * len(groups)), 2.1 + 0.38 * max(map(len, groups.values())))
    few = min(row.seeds for row in rows)
    title = f"{title}, by {metric.name}"
    to_matplotlib(Figure(title, panels, size, len(groups), seeds=few, dpi=120), path)


def improvement(rows: Sequence[Verdict], styles: Styles, label: str, title: str) -> Panel:
    """Return a panel with the estimate of every arm's verdict and its interval."""
    marks = [
        Interval(
            row.label, place, row.estimate, *row.interval,
            styles[row.label], row.verdict == "not tested", row.verdict,
        )
        for place, row in enumerate(rows)
    ]  # fmt: skip
    return _panel(rows, title, Axis(label, limits=(-0.03, 1.03)), marks, 0.5)


def differences(rows: Sequence[Verdict], styles: Styles, label: str, title: str) -> Panel | None:
    """Return a panel with every seed's difference from the baseline, their IQM and its interval.

    Arms with a seed that diverged or never reached the threshold are left out. The result is None
    if no arm remains. For the arguments, see `improvement`.
    """
    marks: list[Points | Interval] = []
    for place, row in enumerate(rows):
        each, iqm, ends = row.pairs["differences"], row.pairs["iqm"], row.pairs["iqm_interval"]
        if each is None or iqm is None or ends is None:
            continue
        style, verdict = styles[row.label], row.verdict
        texts = [f"pair {at}: {difference:.4g}" for at, difference in enumerate(each, 1)]
        hollow = verdict == "not tested"
        marks += [
            Points(row.label, each, [place + 0.22] * len(each), style, texts),
            Interval(row.label, place - 0.12, iqm, *ends, style, hollow, text=verdict),
        ]
    return _panel(rows, title, Axis(label), marks, 0.0) if marks else None


def _panel(rows: Sequence[Verdict], title: str, x: Axis, marks: Sequence, middle: float) -> Panel:
    names, height = elements.rows([row.method for row in rows]), 115 + 34 * max(5, len(rows))
    return Panel(title, x, names, marks, [Rule(middle, upright=True)], height=height)
