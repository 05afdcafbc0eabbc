"""Summaries of a comparison: sentences, and the number of seeds that solved the task over time."""

import os
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.figures.drawing import to_matplotlib
from experiments.figures.elements import STEPS, Axis, Figure, Key, Line, Panel, Style
from experiments.figures.style import NAMES, styles_of
from experiments.statistics.claims import CONTROL
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.verdicts import Verdict


def sentences(
    rows: Sequence[Verdict],
    methods: Mapping[str, str],
    metric: PrimaryMetric,
    baseline: str,
    task: str,
) -> list[str]:
    """Return a comparison in sentences: one for each verdict, then one for the control."""
    groups: dict[str, list[Verdict]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    found = []
    for group, own in groups.items():
        lines = _of_group(own, methods, metric, _name(baseline, methods), task)
        found += [f"{group}: {line}" for line in lines] if len(groups) > 1 else lines
    return [line[0].upper() + line[1:] for line in found]


def _of_group(
    rows: Sequence[Verdict],
    methods: Mapping[str, str],
    metric: PrimaryMetric,
    baseline: str,
    task: str,
) -> list[str]:
    lines = []
    for verdict in ("agrees", "disagrees", "no difference", "undecided", "pilot"):
        turn = -1 if verdict == "disagrees" else 1  # name the more frequent outcome first
        word, other = (metric.better, metric.worse)[::turn]
        own = [
            (
                _name(row.method, methods),
                row.seeds,
                *(row.counts.wins, row.counts.losses)[::turn],
            )
            for row in rows
            if row.verdict == verdict and row.method != CONTROL
        ]
        others = [f"; {name} in {more} and {fewer}" for name, _, more, fewer in own[1:]]
        for name, seeds, more, fewer in own[:1]:
            lines.append(
                f"{name} {metric.did(task)} {word} than {baseline} in {more} of {seeds} seeds and "
                f"{other} in {fewer}{''.join(others)}{_UNDECIDED.get(verdict, '')}."
            )
    for row in rows:
        if row.verdict in ("not tested", "not comparable"):
            lines.append(f"{_name(row.method, methods)}: {row.reason}.")
        elif row.method == CONTROL:
            expected = row.verdict in _UNDECIDED
            lines.append(
                f"{baseline} with other random seeds, as a check, {metric.did(task)} "
                f"{metric.better} in {row.counts.wins} and {metric.worse} in "
                f"{row.counts.losses}"
                f"{'' if expected else ': by chance alone, so read the others with care'}."
            )
    return lines


_UNDECIDED = {
    "no difference": ": no difference", "undecided": ": undecided",
    "pilot": ": too few seeds for a verdict",
}  # fmt: skip


def _name(label: str, methods: Mapping[str, str]) -> str:
    """Return the display name of a label's method, or a label that the user chose."""
    return NAMES.get(label, label) if methods.get(label, label) == label else label


def draw_solved(
    values: Mapping[str, pd.Series],
    rows: Sequence[Verdict],
    methods: Mapping[str, str],
    baseline: str,
    path: str | os.PathLike,
    title: str,
    steps: int,
) -> None:
    """Plot the number of seeds that have solved the task by each agent step, as PNG.

    Args:
      values: agent steps until solved, `[seeds]` by label; infinite for seeds that did not solve
        the task.
      rows: arms of one group with their verdicts; if empty, all arms are shown without verdicts.
      methods: replay method of each label.
      baseline: label of the baseline.
      path: path of the PNG.
      title: the environment, ": " and the common settings of all runs.
      steps: agent steps of a run, the end of the horizontal axis if a seed did not solve the task.
    """
    task, _, rest = title.partition(": ")
    judged = {row.label: row for row in rows}
    others = [label for label in (judged or values) if label != baseline]
    shown = {label: values[label] for label in (baseline, *others)}
    panel = panel_of(shown, rows, methods, steps)
    late = {line.label: np.minimum(values[line.label], steps).mean() for line in panel.marks}
    keys = [
        _key(line.label, judged.get(line.label), line.style, methods, baseline if rows else "")
        for line in sorted(panel.marks, key=lambda line: late[line.label])
    ]
    figure = Figure(
        f"Seeds that have solved {task}", [panel], (9, 4.6), subtitle=rest, keys=keys,
        legend="listed", seeds=len(values[baseline]), dpi=150,
    )  # fmt: skip
    to_matplotlib(figure, path)


def panel_of(
    values: Mapping[str, pd.Series],
    rows: Sequence[Verdict],
    methods: Mapping[str, str],
    steps: int,
) -> Panel:
    """Return a panel with the seeds that have solved the task by each agent step.

    The vertical axis is their number, or their share if arms have different numbers of seeds, as
    in sequential studies. The first label of `values` is the baseline. For the other arguments,
    see `draw_solved`.
    """
    controls = {row.label for row in rows if row.method == CONTROL}
    sizes = {len(own) for label, own in values.items() if label not in controls}
    most = max(sizes) if len(sizes) == 1 else 100
    styles, lines = styles_of({label: methods[label] for label in values}), []
    for row in rows:
        if row.method == CONTROL:
            styles[row.label] |= {"linewidth": 1.3, "linestyle": "--"}
    for label, own in values.items():
        solved_at = own.to_numpy(np.float64)
        at = np.unique([0, *solved_at[np.isfinite(solved_at)], steps])
        counts = (solved_at <= at[:, None]).sum(axis=1)
        shown = counts if {len(own)} == sizes else counts / len(own) * most
        lines.append(Line(label, at, shown, styles[label]))
    late = np.quantile(np.minimum(np.concatenate(list(values.values())), steps), 0.99)
    x = Axis(STEPS, limits=(0.0, min(float(steps), 1.05 * float(late))))
    label = f"seeds, of {most}" if len(sizes) == 1 else f"% of {min(sizes)} to {max(sizes)} seeds"
    return Panel("", x, Axis(label, limits=(0.0, most * 1.02), whole=True), lines)


def _key(
    label: str, row: Verdict | None, style: Style, methods: Mapping[str, str], baseline: str
) -> Key:
    """Return the legend entry of an arm, with its verdict if it has one."""
    name = _name(label, methods)
    if row is None:
        return Key(name, style, "the baseline" if label == baseline else "")
    if row.method == CONTROL:
        name = f"{_name(baseline, methods)}, other seeds"
    verdict = _VERDICTS.get(row.verdict, row.verdict)
    wins, _, losses = row.counts
    return Key(name, style, f"sooner in {wins}, later in {losses}: {verdict}")


_VERDICTS = {"agrees": "better", "disagrees": "worse"}
