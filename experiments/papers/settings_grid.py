"""A heat map of one method compared with another over a grid of settings."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from experiments.figures.style import INK, make_figure
from experiments.papers.blocks import Plotted, head, seeds_of, write
from experiments.statistics.decisions import count_pairs

_NAMES = ["alpha", "rho", "window", "eta"]


def draw(plotted: Plotted, path: Path, *, starts: Mapping[str, str] = MappingProxyType({})) -> None:
    """Plot the probability that PSER needs fewer updates than PER for every setting.

    Cells contain wins and losses of PSER, seed by seed; a seed that did not converge is worse than
    any that did.

    Args:
      plotted: what to plot.
      path: the PNG.
      starts: initial priorities in words.
    """
    frame = plotted.frame
    sizes, begun = (list(dict.fromkeys(frame[name])) for name in ("n", "start"))
    settings = list(frame[_NAMES].drop_duplicates().sort_values(_NAMES).itertuples(index=False))
    rows = list(itertools.product(begun, sizes))
    means, words = np.full((len(rows), len(settings)), np.nan), {}
    for row, (start, n) in enumerate(rows):
        for column, setting in enumerate(settings):
            own = _values(frame, {"n": n, "start": start, **setting._asdict()})
            counts = count_pairs(*own, higher_is_better=False)
            if counts.seeds:
                means[row, column] = counts.mean
                words[row, column] = f"{counts.wins}/{counts.losses}"
    figure = make_figure(2.2 + 0.62 * len(settings), 2.2 + 0.42 * len(rows))
    head(figure, plotted.title, seeds_of(frame))
    axes = figure.subplots()
    image = axes.imshow(means, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    for (row, column), text in words.items():
        dark = abs(means[row, column] - 0.5) > 0.3
        axes.text(
            column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else INK
        )
    axes.set_yticks(
        range(len(rows)), [f"{n:g} states, from {starts.get(s, s)}" for s, n in rows], fontsize=8
    )
    shown = [f"alpha {s.alpha:g}\nrho {s.rho:g}\nW {s.window:g}\neta {s.eta:g}" for s in settings]
    axes.set_xticks(range(len(settings)), shown, fontsize=8)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("P(PSER needs fewer updates)", fontsize=9, color=INK)
    write(figure, path)


def _values(frame: pd.DataFrame, where: Mapping[str, object]) -> tuple[np.ndarray, np.ndarray]:
    """Return the updates of PSER and of PER with a setting, `[seeds]` each."""
    for name, value in where.items():
        frame = frame[frame[name] == value]
    if frame.empty:
        return np.empty(0), np.empty(0)
    both = frame.pivot(index="seed", columns="arm", values="value")
    return both["pser"].to_numpy(float), both["per"].to_numpy(float)
