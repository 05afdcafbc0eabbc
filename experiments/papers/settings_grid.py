"""A figure of one method beside another over a grid of settings."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.analysis.style import COLOURS, FAINT, INK, make_figure, tidy
from experiments.papers.blocks import Plotted, head, seeds_of, write

_NAMES = ["alpha", "rho", "window", "eta"]
_RANGE, _MEDIAN = COLOURS[:2]


def draw(plotted: Plotted, path: Path, *, starts: Mapping[str, str] = MappingProxyType({})) -> None:
    """Plot PER's updates over PSER's for every setting, median and range over seeds.

    Right of 1, PSER needs fewer updates. A seed in which PSER did not converge is at the left edge,
    one in which PER did not at the right, and a triangle there says how many they are.

    Args:
      plotted: what to plot.
      path: the PNG.
      starts: what priorities start from, in words.
    """
    frame = plotted.frame
    sizes, begun = (list(dict.fromkeys(frame[name])) for name in ("n", "start"))
    settings = list(frame[_NAMES].drop_duplicates().sort_values(_NAMES).itertuples(index=False))
    ratios = {
        (n, start, setting): _ratios(frame, {"n": n, "start": start, **setting._asdict()})
        for n, start, setting in itertools.product(sizes, begun, settings)
    }
    known = np.concatenate([*ratios.values(), [1.0]])
    known = known[(known > 0) & np.isfinite(known)]
    limits = known.min() / 2, known.max() * 2
    height = 1.3 + len(sizes) * (0.7 + 0.2 * max(len(settings), 5))
    figure = make_figure(3.3 * len(begun) + 2.4, height)
    lost = any(
        np.isnan(own).any() or not own.all() or np.isinf(own).any() for own in ratios.values()
    )
    meaning = "; triangles: seeds in which PSER (left) or PER (right) did not converge"
    head(figure, plotted.title + meaning * lost, seeds_of(frame))
    panels = figure.subplots(len(sizes), len(begun), sharey=True, sharex=True, squeeze=False)
    for axes, (n, start) in zip(panels.ravel(), itertools.product(sizes, begun), strict=True):
        for place, setting in enumerate(settings):
            _draw(axes, place, ratios[n, start, setting], limits)
        axes.axvline(1.0, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(*limits)
        tidy(axes)
        about = f"{n:g} states, from {starts.get(start, start)}"
        seen = f"{about}\nmedian, range, {seeds_of(frame)} seeds"
        axes.set_title(seen, loc="left", fontsize=9, color=INK)
    labels = [f"alpha {s.alpha:g}, rho {s.rho:g}, W {s.window:g}, eta {s.eta:g}" for s in settings]
    panels[0, 0].set_yticks(range(len(labels)), labels)
    panels[0, 0].set_ylim(len(labels) - 0.4, -0.6)
    for axes in panels[:, 0]:
        axes.tick_params(axis="y", labelsize=8, pad=8)
    for axes in panels[-1]:
        axes.set_xlabel("PER's updates over PSER's", fontsize=9, color=INK)
    write(figure, path)


def _ratios(frame: pd.DataFrame, where: Mapping[str, object]) -> np.ndarray:
    """Return PER's updates over PSER's `[seeds]`: 0 if PSER did not converge, infinite if PER."""
    for name, value in where.items():
        frame = frame[frame[name] == value]
    both = frame.pivot(index="seed", columns="arm", values="value")
    return (both["per"] / both["pser"]).to_numpy() if len(both) else np.empty(0)


def _draw(axes: Axes, place: int, ratios: np.ndarray, limits: tuple[float, float]) -> None:
    if not len(ratios):
        return
    neither = int(np.isnan(ratios).sum())
    left, right = int((ratios == 0).sum()) + neither, int(np.isinf(ratios).sum()) + neither
    known = np.clip(ratios[~np.isnan(ratios)], *limits)
    if len(known):
        low, middle, high = np.percentile(known, [0, 50, 100])
        axes.plot([low, high], [place, place], color=_RANGE, linewidth=1.5)
        if limits[0] < middle < limits[1]:
            axes.plot(middle, place, "o", color=_MEDIAN, markersize=5)
    for count, at, marker, shift in ((left, 0, "<", 7), (right, 1, ">", -7)):
        if count:
            side = {"transform": axes.get_yaxis_transform(), "clip_on": False, "zorder": 4}
            axes.plot(at, place, marker, color=_MEDIAN, markersize=6, **side)
            axes.annotate(
                str(count), (at, place), xycoords=axes.get_yaxis_transform(), fontsize=7,
                xytext=(shift, 3), textcoords="offset points", color=INK, ha="center",
            )  # fmt: skip
