"""Figures, table and summary of several runs together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.curves import learning_curves
from experiments.analysis.files import write_json
from experiments.analysis.panels import own_metrics, replayed
from experiments.analysis.tables import table


def joint(
    frames: Mapping[str, pd.DataFrame],
    summaries: Mapping[str, Mapping[str, Any]],
    out: Path,
    title: str,
    threshold: float | None = None,
) -> str:
    """Write the figures and the table of several runs, and what they are into `summary.json`.

    Args:
      frames: metrics by label.
      summaries: the content of the runs' `summary.json`, by label.
      out: the folder, which exists.
      title: what all of them have in common.
      threshold: the return that counts as solved.

    Returns:
      What to print: the table, and where things are.
    """
    learning_curves(frames, out / "learning_curves.png", title, threshold)
    drawn = [out / "learning_curves.png"]
    if replayed(frames, out / "replayed.png", f"What {title} replays"):
        drawn.append(out / "replayed.png")
    if own_metrics(frames, out / "own_metrics.png", title):
        drawn.append(out / "own_metrics.png")
    text = table([{**summary, "replay": label} for label, summary in summaries.items()])
    (out / "comparison.md").write_text(text)
    write_json(out / "summary.json", dict(summaries))
    figures = "\n         ".join(map(str, drawn))
    return f"\n{text}\ntable:   {out / 'comparison.md'}\nfigures: {figures}"
