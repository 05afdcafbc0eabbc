"""Judged arms: a table of them, and a figure of their differences from the baseline."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from experiments.analysis.paired import Pairs
from experiments.analysis.primary import PrimaryMetric
from experiments.analysis.style import (
    FAINT,
    INK,
    make_figure,
    save,
    styles_of,
    tidy,
    warn_of_few,
)
from experiments.analysis.tables import markdown, number
from experiments.analysis.verdicts import Judgement


class Judged(NamedTuple):
    """An arm beside its baseline."""

    label: str
    method: str  # the label without what the group shares
    group: str  # what it shares with its baseline, such as the replay ratio
    pairs: Pairs
    judgement: Judgement


def table(rows: Sequence[Judged], metric: PrimaryMetric) -> str:
    """Return a Markdown table: what each arm replayed, its paired numbers, and the verdict."""
    return markdown(cells(rows, metric.unit))


def cells(rows: Sequence[Judged], unit: str) -> list[list[str]]:
    """Return the cells of that table, the header first.

    Args:
      rows: the arms.
      unit: of the primary metric.
    """
    header = [
        "arm", "effective buffer", "sampler updates", "wins/losses/ties",
        "P(improvement) [95 %]", f"better by ({unit}): IQM [95 %]", "p (Holm)", "verdict",
    ]  # fmt: skip
    return [header, *map(_cells, rows)]


def _cells(row: Judged) -> list[str]:
    pairs, found = row.pairs, row.judgement
    bootstrap, sequential = pairs.improvement_interval, found.quantity == "improvement"
    # A control makes no claim, and its p-value is not one of those that are corrected.
    alone = f"{pairs.p_value:.2g} (raw)"
    p_value = alone if pairs.p_holm is None else f"{pairs.p_holm:.2g}"
    return [
        row.label,
        number(found.effective_buffer),
        number(found.sampler_updates),
        f"{pairs.wins}/{pairs.losses}/{pairs.ties}",
        _with_interval(pairs.improvement, found.interval if sequential else bootstrap),
        _with_interval(pairs.iqm, pairs.iqm_interval),
        "-" if found.verdict == "not tested" else p_value,
        found.verdict,
    ]


def reasons(rows: Sequence[Judged]) -> str:
    """Return one line for each arm that says why its verdict is what it is."""
    return "\n".join(f"- {row.label}: {row.judgement.reason}" for row in rows) + "\n"


def _with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None or interval is None:
        return "-"
    return f"{number(value)} [{number(interval[0])}, {number(interval[1])}]"


def forest(
    rows: Sequence[Judged],
    methods: Mapping[str, str],
    metric: PrimaryMetric,
    baseline: str,
    path: str | os.PathLike,
    title: str,
) -> None:
    """Plot the probability that each arm improves on the baseline, with 95 % intervals, as PNG.

    One panel for each group. Arms that were not tested are hollow, and say so.

    Args:
      rows: the arms.
      methods: the replay method behind each label.
      metric: the primary one.
      baseline: the label that they are held against.
      path: where to write the PNG.
      title: one line.
    """
    groups = list(dict.fromkeys(row.group for row in rows))
    longest = max(sum(row.group == group for row in rows) for group in groups)
    width = max(7.0, 4.0 * len(groups))
    figure = make_figure(width, 2.1 + 0.38 * longest, dpi=120)
    shown = textwrap.fill(f"{title}, by {metric.name}", int(8 * width))
    figure.suptitle(shown, x=0.01, ha="left", fontsize=13, color=INK)
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    for axes, group in zip(panels, groups, strict=True):
        own = [row for row in rows if row.group == group]
        _draw(axes, own, styles_of(methods))
        axes.set_title(group.replace(", ", "\n"), loc="left", fontsize=9.5, color=INK)
        label = "P(better), by seed" if len(groups) > 1 else f"P(better than {baseline}), by seed"
        axes.set_xlabel(label, fontsize=9.5, color=INK)
    few = min(row.pairs.seeds for row in rows)
    warn_of_few(figure, few)
    save(figure, path)


def _draw(axes: Axes, rows: Sequence[Judged], styles: Mapping[str, Mapping[str, object]]) -> None:
    for place, row in enumerate(rows):
        low, high = row.pairs.improvement_interval
        colour = styles[row.label]["color"]
        untested = row.judgement.verdict == "not tested"
        face = "white" if untested else colour
        axes.plot([low, high], [place, place], color=colour, linewidth=2, alpha=0.8)
        axes.plot(
            row.pairs.improvement, place, "o", markersize=8, color=colour, markerfacecolor=face
        )
        note = {"textcoords": "offset points", "xytext": (0, 7), "fontsize": 8, "color": INK}
        axes.annotate(row.judgement.verdict, (row.pairs.improvement, place), ha="center", **note)
    axes.axvline(0.5, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
    axes.set_yticks(range(len(rows)), [row.method for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.set_xlim(-0.03, 1.03)
    tidy(axes)
    axes.grid(axis="y", visible=False)
