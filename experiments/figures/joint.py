"""Joint figures, tables and summary of several runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.figures import judged
from experiments.figures.curves import learning_curves
from experiments.figures.judged import Judged
from experiments.figures.panels import own_metrics, replayed
from experiments.figures.solved import sentences, solved
from experiments.figures.style import plain
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.tables import table
from experiments.storage.files import write_bytes, write_json

Summaries = Mapping[str, Mapping[str, Any]]


def joint(
    frames: Mapping[str, pd.DataFrame],
    summaries: Summaries,
    out: Path,
    title: str,
    threshold: float | None = None,
) -> str:
    """Write figures, a table and `summary.json` for several runs together.

    Args:
      frames: metrics by label.
      summaries: the content of the runs' `summary.json`, by label.
      out: the folder to write to; it must exist.
      title: what the runs have in common.
      threshold: the return that counts as solved.

    Returns:
      The text to print: the table, and the paths of everything written.
    """
    written = _figures(frames, summaries, out, "", title, threshold)
    text = _summarised(summaries, out, "run")
    write_bytes(out / "comparison.md", text.encode())
    return _shown(text, out, written)


def comparison(
    rows: Sequence[Judged],
    values: Mapping[str, pd.Series],
    metric: PrimaryMetric,
    baseline: str,
    groups: Mapping[str, Mapping[str, str]],
    frames: Mapping[str, pd.DataFrame],
    summaries: Summaries,
    out: Path,
    title: str,
    threshold: float | None = None,
) -> str:
    """Write figures, tables and `summary.json` of a comparison.

    Args:
      rows: every arm next to its baseline.
      values: [seeds] of the primary metric, by label.
      metric: the one that decides.
      baseline: the label of its method.
      groups: labels that are compared with one another -> what they share -> a suffix for files.
      frames: metrics by label.
      summaries: the content of the runs' `summary.json`, by label.
      out: the folder to write to; it must exist.
      title: what all runs have in common.
      threshold: the return that counts as solved.

    Returns:
      The text to print: the result in sentences, and the paths of its picture and tables.
    """
    for group, members in groups.items():
        own = {label: frames[label] for label in members}
        (suffix,) = set(members.values())
        _figures(own, summaries, out, suffix, f"{title}, {group}", threshold)
    methods, task = _methods(summaries), next(iter(summaries.values()))["env"]
    pictures = [out / "verdicts.png"]
    judged.forest(rows, methods, metric, baseline, pictures[0], f"{title}: seed by seed")
    if not metric.higher_is_better:
        pictures = [
            _solved(values, rows, methods, group, members, summaries, out)
            for group, members in groups.items()
        ]
    found = "\n".join(sentences(rows, methods, metric, baseline, task))
    ratios = "".join(f"{group}: {', '.join(members)}.\n" for group, members in groups.items())
    text = (
        f"{found}\n\n{_summarised(summaries, out)}\n{ratios}\n"
        f"Primary metric: {metric.name} ({metric.help}), seed by seed, against {baseline}.\n\n"
        f"{judged.table(rows, metric)}\n{judged.reasons(rows)}"
    )
    write_bytes(out / "comparison.md", text.encode())
    shown = "\n         ".join(map(str, pictures))
    return f"\n{found}\n\npicture: {shown}\ntables:  {out / 'comparison.md'}"


def _solved(
    values: Mapping[str, pd.Series],
    rows: Sequence[Judged],
    methods: Mapping[str, str],
    group: str,
    members: Mapping[str, str],
    summaries: Summaries,
    out: Path,
) -> Path:
    """Plot the seeds of one group that solved the task; the group's first label is the baseline."""
    base, suffix = next(iter(members.items()))
    summary = summaries[base]
    path, own = out / f"solved{suffix}.png", [row for row in rows if row.group == group]
    title = f"{summary['env']}: {summary['agent']}, {group}"
    solved(values, own, methods, base, path, title, summary["final_step"])
    return path


def _figures(
    frames: Mapping[str, pd.DataFrame],
    summaries: Summaries,
    out: Path,
    suffix: str,
    title: str,
    threshold: float | None,
) -> list[Path]:
    short = {label: plain(label.removesuffix(suffix)) for label in frames}  # the title has the rest
    named = {short[label]: frame for label, frame in frames.items()}
    methods = {short[label]: summaries[label]["replay"] for label in frames}
    title = plain(title)
    written = [out / f"learning_curves{suffix}.png"]
    learning_curves(named, written[0], title, threshold, methods)
    more = out / f"replayed{suffix}.png"
    if replayed(named, more, f"What is replayed: {title}", methods):
        written.append(more)
    more = out / f"own_metrics{suffix}.png"
    if own_metrics(named, more, title, methods):
        written.append(more)
    return written


def _methods(summaries: Summaries) -> dict[str, str]:
    return {label: summary["replay"] for label, summary in summaries.items()}


def _summarised(summaries: Summaries, out: Path, called: str = "replay") -> str:
    write_json(out / "summary.json", dict(summaries))
    return table([{**summary, "replay": label} for label, summary in summaries.items()], called)


def _shown(text: str, out: Path, written: Sequence[Path]) -> str:
    figures = "\n         ".join(map(str, written))
    return f"\n{text}\ntable:   {out / 'comparison.md'}\nfigures: {figures}"
