"""Learning curves of several runs."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.drawing import STEPS, Panel, draw_line, draw_rule, finish, write_grid
from experiments.figures.style import INK, Styles, styles_of
from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.statistics.markdown import span
from experiments.statistics.summaries import curves, diverged_seeds

CROWD = 4  # number of bands in a panel above which they hide each other

Path = str | os.PathLike
Methods = Mapping[str, str]  # label -> replay method, which determines the colour
Frames = Mapping[str, pd.DataFrame]  # label -> metrics, with columns seed, step, eval_return


class Curve(NamedTuple):
    """Interquartile mean over seeds, and the ends of its bootstrap interval."""

    steps: np.ndarray  # [T]
    middle: np.ndarray  # [T]
    low: np.ndarray | None  # [T]; None for one seed
    high: np.ndarray | None


def learning_curves(
    frames: Frames,
    path: Path,
    title: str,
    threshold: float | None = None,
    methods: Methods | None = None,
) -> None:
    """Plot learning curves as a PNG 1200 pixels wide.

    Lines are interquartile means over seeds (plain means for fewer than four seeds), and bands are
    95 % bootstrap intervals (Agarwal et al. 2021). Up to four labels share one panel. With more
    labels, each label has a panel that compares it with the first label.

    Args:
      frames: metrics by label, with columns seed, step and eval_return.
      path: path of the PNG.
      title: title of the figure, in one line.
      threshold: return that counts as solved, plotted as a thin line.
      methods: replay method of each label, which determines its colour; None means that labels are
        methods.
    """
    styles = styles_of(methods or {label: label for label in frames})
    subtitle, seeds = _subtitle(frames), seeds_of(frames)[0] if len(frames) > 1 else None
    together, *pairs = curve_panels(frames, styles, threshold)
    if not pairs:
        write_grid(path, title, [together], (8, 5), subtitle=subtitle, seeds=seeds, dpi=150)
        return
    first, columns = next(iter(frames)), min(4, len(pairs))
    write_grid(
        path, title, pairs, (12, 1.1 + 2.6 * -(-len(pairs) // columns)), columns=columns,
        subtitle=subtitle, legend={first: styles[first]}, shared=True, seeds=seeds,
    )  # fmt: skip


def curve_panels(frames: Frames, styles: Styles, threshold: float | None) -> list[Panel]:
    """Return a panel of all labels; if more than four, also panels of each with the first one."""
    drawn = {label: curve_of(frame) for label, frame in frames.items()}
    panel = partial(draw_curves, styles=styles, threshold=threshold)
    if len(drawn) <= CROWD:
        return [partial(panel, drawn=drawn, names=True)]
    first, *others = drawn
    limits = _limits(drawn.values(), threshold)
    pairs = [
        partial(
            panel, drawn={first: drawn[first], label: drawn[label]}, title=label, limits=limits,
            colour=styles[label]["color"],
        )
        for label in others
    ]  # fmt: skip
    return [partial(panel, drawn=drawn, title="All arms"), *pairs]


def draw_curves(
    axes: Axes,
    drawn: Mapping[str, Curve],
    styles: Styles,
    threshold: float | None,
    *,
    title: str = "",
    names: bool = False,
    limits: tuple[float, float] | None = None,
    colour: str = INK,
) -> None:
    """Draw curves by label with their intervals, and the threshold.

    Args:
      axes: the axes.
      drawn: curves by label.
      styles: style of each label.
      threshold: return that counts as solved, or None.
      title: title of the panel.
      names: whether each line has its label at its right end.
      limits: limits of the vertical axis.
      colour: colour of the title.
    """
    for label, (steps, middle, low, high) in drawn.items():
        draw_line(axes, label, steps, middle, styles[label], low, high)
    if threshold is not None:
        draw_rule(axes, threshold, f"{threshold:g}")
    finish(axes, title, STEPS, "return (greedy evaluation)", colour)
    axes.set_xlim(0, max(float(np.max(own.steps, initial=1)) for own in drawn.values()))
    if limits is not None:
        axes.set_ylim(*limits)
    if names:
        _name_ends(axes)


def curve_of(frame: pd.DataFrame) -> Curve:
    """Return the IQM over seeds by agent step, with a bootstrap interval for several seeds."""
    returns = curves(frame).dropna()
    steps, values = returns.index.to_numpy(), returns.to_numpy().T
    low, high = bootstrap_interval(values) if len(values) > 1 and len(steps) else (None, None)
    return Curve(steps, iqm(values), low, high)


def seeds_of(frames: Frames) -> list[int]:
    """Return the distinct numbers of seeds of the labels, sorted."""
    return sorted({int(frame["seed"].nunique()) for frame in frames.values()})


def statistic(seeds: Sequence[int]) -> str:
    """Return a description of the lines and bands, given the numbers of seeds."""
    if list(seeds) == [1]:
        return "one seed"
    middle = "IQM" if seeds[-1] >= 4 else "mean"
    return f"{middle} of {span(seeds)} seeds with 95 % bootstrap interval"


def _limits(drawn: Iterable[Curve], threshold: float | None) -> tuple[float, float]:
    """Return limits of a vertical axis that all curves fit."""
    values = [part for own in drawn for part in (own.middle, own.low, own.high) if part is not None]
    ends = np.concatenate([*values, [math.nan if threshold is None else threshold]])
    ends = ends[np.isfinite(ends)] if np.isfinite(ends).any() else np.array([0.0, 1.0])
    pad = 0.05 * (float(np.ptp(ends)) or 1.0)
    return float(ends.min()) - pad, float(ends.max()) + pad


def _name_ends(axes: Axes) -> None:
    """Label each line at its right end, and separate labels that would overlap."""
    low, high = axes.get_ylim()
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    ends = {line: float(line.get_ydata()[-1]) for line in lines if len(line.get_ydata())}
    lines = sorted(ends, key=ends.__getitem__, reverse=True)
    places = [(ends[line] - low) / (high - low) for line in lines]
    for lower in range(1, len(places)):
        places[lower] = min(places[lower], places[lower - 1] - 0.06)
    lift = max(0.0, -min(places, default=0.0))  # keep all labels above the axis
    beside = {"transform": axes.transAxes, "clip_on": False}
    for place, line in zip(places, lines, strict=True):
        colour = line.get_color()
        style = {"color": colour, "linestyle": line.get_linestyle(), "linewidth": 1.8}
        axes.plot([1.012, 1.042], [place + lift] * 2, **style, **beside)
        name = {"color": colour, "fontsize": 11, "fontweight": "bold", "va": "center"}
        axes.text(1.05, place + lift, line.get_label(), **name, **beside)


def _subtitle(frames: Frames) -> str:
    lost = {label: diverged_seeds(frame) for label, frame in frames.items()}
    shares = ", ".join(
        f"{label} {len(seeds)}/{frames[label]['seed'].nunique()}"
        for label, seeds in lost.items()
        if seeds
    )
    return statistic(seeds_of(frames)) + (f"; diverged: {shares}" if shares else "")
