"""A comparison at a glance: how many seeds solved the task after how many steps, and sentences."""

import os
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.analysis.judged import Judged
from experiments.analysis.primary import PrimaryMetric
from experiments.analysis.style import (
    FAINT,
    INK,
    NAMES,
    count_steps,
    make_figure,
    plain,
    save,
    styles_of,
    tidy,
    warn_of_few,
)
from experiments.analysis.verdicts import CONTROL


def sentences(
    rows: Sequence[Judged],
    methods: Mapping[str, str],
    metric: PrimaryMetric,
    baseline: str,
    task: str,
) -> list[str]:
    """Return the result of a comparison in sentences: one for each verdict, then the control's.

    Args:
      rows: the arms.
      methods: the replay method behind each label.
      metric: the primary one.
      baseline: the label of the baseline's method.
      task: the environment's name.
    """
    groups = list(dict.fromkeys(row.group for row in rows))
    found = []
    for group in groups:
        own = [row for row in rows if row.group == group]
        lines = _of_group(own, methods, metric, _name(baseline, methods), task)
        found += [f"{group}: {line}" for line in lines] if len(groups) > 1 else lines
    return [line[0].upper() + line[1:] for line in found]


def _of_group(
    rows: Sequence[Judged],
    methods: Mapping[str, str],
    metric: PrimaryMetric,
    baseline: str,
    task: str,
) -> list[str]:
    lines = []
    verdicts = ["agrees", "disagrees", "no difference", "undecided", "pilot"]
    for verdict in verdicts:
        own = [row for row in rows if row.judgement.verdict == verdict and row.method != CONTROL]
        worse_first = verdict == "disagrees"
        counts = [_counts(row, worse_first) for row in own]
        words = [metric.better, metric.worse][:: -1 if worse_first else 1]
        others = [
            f"; {_name(row.method, methods)} in {more} and {fewer}"
            for row, (more, fewer) in zip(own[1:], counts[1:], strict=True)
        ]
        for row, (more, fewer) in zip(own[:1], counts[:1], strict=True):
            lines.append(
                f"{_name(row.method, methods)} {metric.did(task)} {words[0]} than {baseline} in "
                f"{more} of {row.pairs.seeds} seeds and {words[1]} in {fewer}{''.join(others)}"
                f"{_UNDECIDED.get(verdict, '')}."
            )
    for row in rows:
        name = _name(row.method, methods)
        if row.judgement.verdict in ("not tested", "not comparable"):
            lines.append(f"{name}: {row.judgement.reason}.")
        elif row.method == CONTROL:
            expected = row.judgement.verdict in _UNDECIDED
            lines.append(
                f"{baseline} with other random seeds, as a check, {metric.did(task)} "
                f"{metric.better} in {row.pairs.wins} and {metric.worse} in {row.pairs.losses}"
                f"{'' if expected else ': by chance alone, so read the others with care'}."
            )
    return lines


_UNDECIDED = {
    "no difference": ": no difference", "undecided": ": undecided",
    "pilot": ": too few seeds for a verdict",
}  # fmt: skip


def _counts(row: Judged, worse_first: bool) -> tuple[int, int]:
    counts = row.pairs.wins, row.pairs.losses
    return counts[::-1] if worse_first else counts


def _name(label: str, methods: Mapping[str, str]) -> str:
    """Return the name of a method, or the label that the user gave it."""
    return NAMES.get(label, label) if methods.get(label, label) == label else label


def solved(
    values: Mapping[str, pd.Series],
    rows: Sequence[Judged],
    methods: Mapping[str, str],
    baseline: str,
    path: str | os.PathLike,
    title: str,
    steps: int,
) -> None:
    """Plot how many seeds have solved the task by each agent step, with verdicts, as PNG.

    Args:
      values: [seeds] agent steps until solved, by label; infinite where a seed did not solve it.
      rows: the arms beside the baseline, of one group.
      methods: the replay method behind each label.
      baseline: the baseline's label.
      path: where to write the PNG.
      title: the environment, ": " and what all runs share.
      steps: of the runs, the end of the horizontal axis if a seed did not solve the task.
    """
    judged = {row.label: row for row in rows}
    shown = {label: values[label].to_numpy(np.float64) for label in (baseline, *judged)}
    figure = make_figure(9, 4.6, dpi=150)
    axes, beside = figure.subplots(1, 2, width_ratios=(2, 1))
    styles = styles_of({label: methods[label] for label in shown})
    for row in rows:
        if row.method == CONTROL:
            styles[row.label] |= {"linewidth": 1.3, "linestyle": (0, (4, 2))}
    order = sorted(shown, key=lambda label: np.minimum(shown[label], steps).mean())
    for label in shown:
        _count_solved(axes, shown[label], styles[label], steps)
    _list_verdicts(beside, order, judged, methods, styles, baseline)
    seeds = len(shown[baseline])
    task, _, rest = plain(title).partition(": ")
    axes.set_title(f"Seeds that have solved {task}", loc="left", fontsize=13, color=INK, pad=22)
    axes.text(0, 1.02, rest, transform=axes.transAxes, fontsize=9.5, color=FAINT)
    axes.set_ylabel(f"seeds, of {seeds}", fontsize=10.5, color=INK)
    axes.set_xlabel("agent steps", fontsize=10.5, color=INK)
    axes.set_ylim(0, seeds * 1.02)
    late = np.quantile(np.minimum(np.concatenate(list(shown.values())), steps), 0.99)
    axes.set_xlim(0, min(steps, 1.05 * late))
    tidy(axes)
    count_steps(axes, 5)
    warn_of_few(figure, seeds)
    save(figure, path)


def _count_solved(axes: Axes, values: np.ndarray, style: Mapping, steps: int) -> None:
    at = np.unique([0, *values[np.isfinite(values)], steps])
    axes.plot(at, (values <= at[:, None]).sum(axis=1), **style)


def _list_verdicts(
    axes: Axes,
    order: Sequence[str],
    judged: Mapping[str, Judged],
    methods: Mapping[str, str],
    styles: Mapping[str, Mapping],
    baseline: str,
) -> None:
    """List the labels from the earliest curve to the latest, each with its verdict."""
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(order) - 0.3, -0.5)
    for place, label in enumerate(order):
        row, style = judged.get(label), styles[label]
        name, note = _name(baseline, methods), "the baseline"
        if row is not None:
            name = _name(row.method, methods)
            note = f"sooner in {row.pairs.wins}, later in {row.pairs.losses}: "
            note += _VERDICTS.get(row.judgement.verdict, row.judgement.verdict)
        if row is not None and row.method == CONTROL:
            name = f"{_name(baseline, methods)}, other seeds"
        axes.plot([0, 0.09], [place, place], **style)
        axes.text(0.13, place, plain(name), fontsize=10.5, fontweight="bold", va="center",
                  color=style["color"])  # fmt: skip
        axes.text(0.13, place + 0.36, note, fontsize=9, va="center", color=INK)


_VERDICTS = {"agrees": "better", "disagrees": "worse"}
