"""A figure of one number per game, the largest first."""

from pathlib import Path

from experiments.figures.style import INK, make_figure, plain, tidy
from experiments.papers.blocks import Plotted, head, write


def draw(plotted: Plotted, path: Path, *, label: str, lacking: str) -> None:
    """Plot a bar per arm, the longest first, and name the arms that have no number.

    Args:
      plotted: what to plot, in column `value`.
      path: the PNG.
      label: what the lengths are, with their unit.
      lacking: why an arm has none.
    """
    frame = plotted.frame.sort_values("value", ascending=False, kind="stable")
    known, others = frame[frame["value"].notna()], frame.loc[frame["value"].isna(), "arm"]
    figure = make_figure(6.5, 0.17 * len(known) + 1.4)
    head(figure, plotted.title)
    axes = figure.subplots()
    axes.barh(range(len(known)), known["value"], color=INK, alpha=0.75)
    tidy(axes)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(known)), [plain(arm) for arm in known["arm"]], fontsize=7)
    axes.set_ylim(len(known) - 0.4, -0.6)
    axes.set_xlabel(label, fontsize=9, color=INK)
    if len(others):
        text = f"Not shown, {lacking}:\n{plain(', '.join(others))}"
        axes.text(0.98, 0.02, text, transform=axes.transAxes, ha="right", fontsize=8, color=INK)
    write(figure, path)
