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
from experiments.statistics.markdown import span
from experiments.statistics.statistics import curves, diverged_seeds

CROWD = 4  # number of bands in a panel above which they hide each other
_RETURN = "return (greedy evaluation)"

Path = str | os.PathLike
Methods = Mapping[str, str]  # label -> replay method, which determines the colour
Frames = Mapping[str, pd.DataFrame]  # label -> metrics, with columns seed, step, eval_return


def learning_curves(
    frames: Frames,
    path: Path,
    title: str,
    threshold: float | None = None,
    methods: Methods | None = None,
) -> None:
    """Plot learning curves as a PNG 1200 pixels wide.

    Lines are interquartile means over seeds (plain means for fewer than four seeds), and bands are
    95 % bootstrap intervals (Agarwal et al. 2021). Up to four labels share one panel; of more
    labels, each has a panel that compares it with the first label.

    Args:
      frames: metrics by label, with columns seed, step and eval_return.
      path: path of the PNG.
      title: title of the figure, in one line.
      threshold: return that counts as solved, plotted as a thin line.
      methods: replay method of each label, which determines its colour; by default, the label.
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
    """Return a panel for every label but the first, each compared with the first label."""
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
    """Return the IQM over seeds as a line, with a bootstrap interval if there are several seeds."""
    returns = curves(frame).dropna()
    steps, values = returns.index.to_numpy(), returns.to_numpy().T
    low, high = bootstrap_interval(values) if len(values) > 1 and len(steps) else (None, None)
    return Line(label, steps, iqm(values), style, low, high)


def seeds_of(frames: Frames) -> list[int]:
    """Return the distinct numbers of seeds of the labels, sorted."""
    return sorted({int(frame["seed"].nunique()) for frame in frames.values()})


def statistic(seeds: Sequence[int]) -> str:
    """Return a description of the lines and bands over these numbers of seeds."""
    if list(seeds) == [1]:
        return "one seed"
    middle = "IQM" if seeds[-1] >= 4 else "mean"
    return f"{middle} of {span(seeds)} seeds with 95 % bootstrap interval"


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
