"""Joint figures, table and summary of several runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.curves import learning_curves
from experiments.analysis.files import write_json
from experiments.analysis.panels import own_metrics, replayed
from experiments.analysis.style import plain
from experiments.analysis.tables import table


def joint(
    frames: Mapping[str, pd.DataFrame],
    summaries: Mapping[str, Mapping[str, Any]],
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
    named = {plain(label): frame for label, frame in frames.items()}
    title = plain(title)
    learning_curves(named, out / "learning_curves.png", title, threshold)
    written = [out / "learning_curves.png"]
    if replayed(named, out / "replayed.png", f"What {title} replays"):
        written.append(out / "replayed.png")
    if own_metrics(named, out / "own_metrics.png", title):
        written.append(out / "own_metrics.png")
    text = table([{**summary, "replay": label} for label, summary in summaries.items()])
    (out / "comparison.md").write_text(text)
    write_json(out / "summary.json", dict(summaries))
    figures = "\n         ".join(map(str, written))
    return f"\n{text}\ntable:   {out / 'comparison.md'}\nfigures: {figures}"
