"""Figures of several runs during training."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from experiments.figures.curves import learning_curves
from experiments.figures.panels import own_metrics, replayed
from experiments.figures.style import plain


def during_training(
    frames: Mapping[str, pd.DataFrame],
    methods: Mapping[str, str],
    out: Path,
    title: str,
    threshold: float | None = None,
    suffix: str = "",
) -> list[Path]:
    """Draw learning curves, replayed transitions, and metrics of methods and agents, as PNG.

    Args:
      frames: metrics by label.
      methods: the replay method behind each label.
      out: the folder to write to; it must exist.
      title: what the runs have in common.
      threshold: the return that counts as solved.
      suffix: end of the names of the files.

    Returns:
      The paths of the figures; metrics that no run has are not drawn.
    """
    named = {plain(label): frame for label, frame in frames.items()}
    own, title = {plain(label): method for label, method in methods.items()}, plain(title)
    written = [out / f"learning_curves{suffix}.png"]
    learning_curves(named, written[0], title, threshold, own)
    for name, draw, about in (
        ("replayed", replayed, f"What is replayed: {title}"), ("own_metrics", own_metrics, title),
    ):  # fmt: skip
        path = out / f"{name}{suffix}.png"
        if draw(named, path, about, own):
            written.append(path)
    return written
