"""A comparison at a glance: how many seeds solved the task after how many steps, and sentences."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.analysis.drawing import to_matplotlib
from experiments.analysis.figures import STEPS, Axis, Figure, Key, Line, Panel, Style
from experiments.analysis.judged import Judged
from experiments.analysis.primary import PrimaryMetric
from experiments.analysis.style import NAMES, styles_of
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
    labels = (baseline, *judged)
    panel = solved_panel({label: values[label] for label in labels}, rows, methods, steps, title)
    lines = {line.label: line for line in panel.marks}
    order = sorted(lines, key=lambda label: np.minimum(values[label].to_numpy(), steps).mean())
    keys = [_key(judged.get(label), lines[label].style, methods, baseline) for label in order]
    _, _, rest = title.partition(": ")
    figure = Figure(
        panel.title, [replace(panel, title="")], (9, 4.6), subtitle=rest, keys=keys,
        legend="listed", seeds=len(values[baseline]), dpi=150,
    )  # fmt: skip
    to_matplotlib(figure, path)


def solved_panel(
    values: Mapping[str, pd.Series],
    rows: Sequence[Judged],
    methods: Mapping[str, str],
    steps: int,
    title: str,
) -> Panel:
    """Return a panel with the number of seeds that have solved the task by each agent step.

    Args:
      values: [seeds] agent steps until solved, by label, the baseline first.
      rows: the arms beside the baseline.
      methods: the replay method behind each label.
      steps: of the runs.
      title: the environment, ": " and what all runs share.
    """
    styles = styles_of({label: methods[label] for label in values})
    for row in rows:
        if row.method == CONTROL:
            styles[row.label] |= {"linewidth": 1.3, "linestyle": "--"}
    lines = []
    for label, own in values.items():
        solved_at = own.to_numpy(np.float64)
        at = np.unique([0, *solved_at[np.isfinite(solved_at)], steps])
        counts = (solved_at <= at[:, None]).sum(axis=1)
        lines.append(Line(label, at, counts, styles[label]))
    seeds = max(map(len, values.values()))
    every = np.minimum(np.concatenate([own.to_numpy(np.float64) for own in values.values()]), steps)
    x = Axis(STEPS, limits=(0.0, min(float(steps), 1.05 * float(np.quantile(every, 0.99)))))
    y = Axis(f"seeds, of {seeds}", limits=(0.0, seeds * 1.02), whole=True)
    return Panel(f"Seeds that have solved {title.partition(': ')[0]}", x, y, lines)


def _key(row: Judged | None, style: Style, methods: Mapping[str, str], baseline: str) -> Key:
    """Return the legend's entry of an arm, with its verdict; None: the baseline."""
    if row is None:
        return Key(_name(baseline, methods), style, "the baseline")
    name = _name(row.method, methods)
    if row.method == CONTROL:
        name = f"{_name(baseline, methods)}, other seeds"
    verdict = _VERDICTS.get(row.judgement.verdict, row.judgement.verdict)
    return Key(name, style, f"sooner in {row.pairs.wins}, later in {row.pairs.losses}: {verdict}")


_VERDICTS = {"agrees": "better", "disagrees": "worse"}
