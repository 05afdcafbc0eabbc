"""Learning curves of several runs."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.figures.drawing import to_matplotlib
from experiments.figures.elements import STEPS, Axis, Figure, Key, Line, Panel, Rule, Style
from experiments.figures.style import styles_of
from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.statistics.statistics import curves, diverged_seeds

CROWD = 4  # more bands than this in one panel hide each other
_RETURN = "return (greedy evaluation)"

Path = str | os.PathLike
Methods = Mapping[str, str]  # the replay method behind each label, for its colour
Frames = Mapping[str, pd.DataFrame]  # metrics by label, with columns seed, step and eval_return


def learning_curves(
    frames: Frames,
    path: Path,
    title: str,
    threshold: float | None = None,
    methods: Methods | None = None,
) -> None:
    """Plot learning curves into a PNG 1200 pixels wide: one panel, or one for each of many labels.

    A line is the interquartile mean over seeds (the mean for fewer than four), the band around it
    the 95 % bootstrap interval (Agarwal et al. 2021). With more than four labels, every panel
    compares one of them with the first.

    Args:
      frames: metrics by label, with columns seed, step and eval_return.
      path: where to write the PNG.
      title: one line.
      threshold: the return that counts as solved; plotted as a thin line.
      methods: the replay method behind each label, for its colour; by default the label itself.
    """
    methods = methods or {label: label for label in frames}
    seeds = seeds_of(frames)[0] if len(frames) > 1 else None
    figure = Figure(
        title, [together(frames, methods, threshold)], (8, 5), subtitle=_subtitle(frames),
        legend="ends", seeds=seeds, dpi=150,
    )  # fmt: skip
    if len(frames) > CROWD:
        first, *others = frames
        columns, keys = min(4, len(others)), [Key(first, styles_of(methods)[first])]
        figure = replace(
            figure, panels=beside_first(frames, methods, threshold), columns=columns,
            size=(12, 1.1 + 2.6 * -(-len(others) // columns)), keys=keys,
            legend="below", shared=True, dpi=100,
        )  # fmt: skip
    to_matplotlib(figure, path)


def together(frames: Frames, methods: Methods, threshold: float | None, title: str = "") -> Panel:
    """Return a panel with the learning curves of all labels."""
    return _panel(title, _curves(frames, methods), threshold)


def beside_first(frames: Frames, methods: Methods, threshold: float | None) -> list[Panel]:
    """Return a panel for every label but the first, with the first one's curve."""
    first, *others = lines = _curves(frames, methods)
    parts = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    ends = np.concatenate([*map(np.ravel, parts), [threshold or math.nan]])
    ends = ends[np.isfinite(ends)] if np.isfinite(ends).any() else np.array([0.0, 1.0])
    pad = 0.05 * (float(np.ptp(ends)) or 1.0)
    y = Axis(_RETURN, limits=(float(ends.min()) - pad, float(ends.max()) + pad))
    panels = [_panel(other.label, [first, other], threshold) for other in others]
    return [replace(panel, y=y, colour=panel.marks[1].style["color"]) for panel in panels]


def _curves(frames: Frames, methods: Methods) -> list[Line]:
    styles = styles_of(methods)
    return [curve(label, frame, styles[label]) for label, frame in frames.items()]


def curve(label: str, frame: pd.DataFrame, style: Style) -> Line:
    """Return the interquartile mean over seeds, with its bootstrap interval for several seeds."""
    returns = curves(frame).dropna()
    steps, values = returns.index.to_numpy(), returns.to_numpy().T
    low, high = bootstrap_interval(values) if len(values) > 1 and len(steps) else (None, None)
    return Line(label, steps, iqm(values), style, low, high)


def seeds_of(frames: Frames) -> list[int]:
    """Return the different numbers of seeds, sorted."""
    return sorted({int(frame["seed"].nunique()) for frame in frames.values()})


def statistic(seeds: Sequence[int]) -> str:
    """Return a description of the lines and bands over these numbers of seeds."""
    if list(seeds) == [1]:
        return "one seed"
    count = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))
    return f"{'IQM' if seeds[-1] >= 4 else 'mean'} of {count} seeds with 95 % bootstrap interval"


def _panel(title: str, lines: Sequence[Line], threshold: float | None) -> Panel:
    end = max((float(np.max(line.x, initial=1)) for line in lines), default=1.0)
    rules = [] if threshold is None else [Rule(threshold, f"{threshold:g}")]
    return Panel(title, Axis(STEPS, limits=(0.0, end)), Axis(_RETURN), lines, rules)


def _subtitle(frames: Frames) -> str:
    lost = {label: diverged_seeds(frame) for label, frame in frames.items()}
    shares = ", ".join(
        f"{label} {len(seeds)}/{frames[label]['seed'].nunique()}"
        for label, seeds in lost.items()
        if seeds
    )
    return statistic(seeds_of(frames)) + (f"; diverged: {shares}" if shares else "")
