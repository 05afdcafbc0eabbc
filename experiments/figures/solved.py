"""Summaries of a comparison: sentences, and the number of seeds that solved the task over time."""

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.drawing import STEPS, finish, whole_ticks, write_head
from experiments.figures.style import (
    INK,
    NAMES,
    Styles,
    make_figure,
    plain,
    save,
    styles_of,
    warn_of_few,
)
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
    """Return a comparison in sentences: one for each verdict of a method against the baseline.

    The last sentence compares the baseline with itself on other random seeds (the control arm).
    """
    groups: dict[str, list[Verdict]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    said = []
    for group, members in groups.items():
        lines = _of_group(members, methods, metric, _name(baseline, methods), task)
        said += [f"{group}: {line}" for line in lines] if len(groups) > 1 else lines
    return [line[0].upper() + line[1:] for line in said]


def _of_group(
    rows: Sequence[Verdict],
    methods: Mapping[str, str],
    metric: PrimaryMetric,
    baseline: str,
    task: str,
) -> list[str]:
    lines = []
    for verdict in ("better", "worse", "no difference", "undecided", "pilot"):
        turn = -1 if verdict == "worse" else 1  # name the more frequent outcome first
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


def write_solved(
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
    task, _, subtitle = title.partition(": ")
    verdicts = {row.label: row for row in rows}
    others = [label for label in (verdicts or values) if label != baseline]
    values = {label: values[label] for label in (baseline, *others)}
    styles = solved_styles(values, rows, methods)
    figure = make_figure(9, 4.6, dpi=150)
    write_head(figure, f"Seeds that have solved {task}", subtitle)
    axes, beside = figure.subplots(1, 2, width_ratios=[2, 1])
    draw_solved(axes, values, styles, rows, steps)
    beside.set_axis_off()
    beside.set_xlim(0, 1)
    beside.set_ylim(len(values) - 0.3, -0.5)
    for place, label in enumerate(
        sorted(values, key=lambda k: np.minimum(values[k], steps).mean())
    ):
        name, note = key_of(label, verdicts.get(label), methods, baseline if rows else "")
        beside.plot([0, 0.09], [place, place], **styles[label])
        bold = {"fontsize": 10.5, "fontweight": "bold", "color": styles[label]["color"]}
        beside.text(0.13, place, plain(name), va="center", **bold)
        beside.text(0.13, place + 0.36, plain(note), fontsize=9, va="center", color=INK)
    warn_of_few(figure, len(values[baseline]))
    save(figure, path)


def draw_solved(
    axes: Axes,
    values: Mapping[str, pd.Series],
    styles: Styles,
    rows: Sequence[Verdict],
    steps: int,
    title: str = "",
) -> None:
    """Draw the seeds that have solved the task by each agent step.

    The vertical axis is their number, or their share if arms have different numbers of seeds, as
    in sequential studies. The first label of `values` is the baseline. For the arguments, see
    `write_solved`.
    """
    controls = {row.label for row in rows if row.method == CONTROL}
    sizes = {len(own) for label, own in values.items() if label not in controls}
    most = max(sizes) if len(sizes) == 1 else 100
    for label, own in values.items():
        at, solved = solved_by(own, steps)
        shown = solved if {len(own)} == sizes else solved / len(own) * most
        axes.plot(at, shown, label=plain(label), **styles[label])
    label = f"seeds, of {most}" if len(sizes) == 1 else f"% of {min(sizes)} to {max(sizes)} seeds"
    finish(axes, title, STEPS, label)
    late = np.quantile(np.minimum(np.concatenate(list(values.values())), steps), 0.99)
    axes.set_xlim(0, min(float(steps), 1.05 * float(late)))
    axes.set_ylim(0, most * 1.02)
    whole_ticks(axes, "y")


def solved_by(values: pd.Series, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return agent steps, and the number of seeds that have solved the task by each of them."""
    solved_at = values.to_numpy(np.float64)
    at = np.unique([0, *solved_at[np.isfinite(solved_at)], steps])
    return at, (solved_at <= at[:, None]).sum(axis=1)


def solved_styles(
    labels: Iterable[str], rows: Sequence[Verdict], methods: Mapping[str, str]
) -> Styles:
    """Return the style of each label; the control is dashed."""
    styles = styles_of({label: methods[label] for label in labels})
    for row in rows:
        if row.method == CONTROL:
            styles[row.label] |= {"linewidth": 1.3, "linestyle": "--"}
    return styles


def key_of(
    label: str, row: Verdict | None, methods: Mapping[str, str], baseline: str
) -> tuple[str, str]:
    """Return the name of an arm in the legend, and its verdict if it has one."""
    name = _name(label, methods)
    if row is None:
        return name, "the baseline" if label == baseline else ""
    if row.method == CONTROL:
        name = f"{_name(baseline, methods)}, other seeds"
    wins, _, losses = row.counts
    return name, f"sooner in {wins}, later in {losses}: {row.verdict}"
