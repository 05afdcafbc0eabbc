"""A figure of one method beside another over a grid of settings."""

import itertools
from pathlib import Path

import numpy as np

from experiments.analysis.style import COLOURS, FAINT, INK, make_figure, save, tidy
from experiments.papers.layouts import Plotted, head, seeds_of


def draw(plotted: Plotted, path: Path) -> None:
    """Plot PER's updates over PSER's for every setting, median and range over seeds.

    Right of 1, PSER needs fewer updates.
    """
    frame = plotted.frame
    sizes, starts = (list(dict.fromkeys(frame[name])) for name in ("n", "start"))
    names = ["alpha", "rho", "window", "eta"]
    settings = frame[names].drop_duplicates().sort_values(names)
    figure = make_figure(4.2 * len(sizes) * len(starts), 1.4 + 0.24 * len(settings))
    head(figure, plotted.title, seeds_of(frame))
    panels = figure.subplots(1, len(sizes) * len(starts), sharey=True, squeeze=False)[0]
    for axes, (n, start) in zip(panels, itertools.product(sizes, starts), strict=True):
        for place, setting in enumerate(settings.itertuples(index=False)):
            own = frame[(frame["n"] == n) & (frame["start"] == start)]
            for name in names:
                own = own[own[name] == getattr(setting, name)]
            both = own.pivot_table(index="seed", columns="arm", values="value").dropna()
            ratios = (both["per"] / both["pser"]).to_numpy() if len(both) else np.empty(0)
            if not len(ratios):
                continue
            low, middle, high = np.percentile(ratios, [0, 50, 100])
            axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=1.5)
            axes.plot(middle, place, "o", color=COLOURS[1], markersize=5)
        axes.axvline(1.0, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        tidy(axes)
        axes.set_title(f"n = {n}, start: {start}", loc="left", fontsize=9, color=INK)
        axes.set_xlabel("PER's updates over PSER's", fontsize=9, color=INK)
    labels = [
        f"alpha {s.alpha:g}, rho {s.rho:g}, W {s.window:g}, eta {s.eta:g}"
        for s in settings.itertuples()
    ]
    panels[0].set_yticks(range(len(labels)), labels, fontsize=8)
    panels[0].invert_yaxis()
    save(figure, path)
