"""The look that all figures share."""

import os

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

# Okabe and Ito's palette without yellow: distinct for every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
INK, FAINT = "#333333", "#8a8a8a"


def make_figure(width: float, height: float, dpi: int = 100) -> Figure:
    """Make an empty figure of this size in inches, without pyplot and its global state."""
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | os.PathLike) -> None:
    """Write a PNG whose bytes depend on nothing but the figure."""
    figure.savefig(path, metadata={"Software": None}, pil_kwargs={"optimize": True})


def colour_and_dashes(number: int) -> dict[str, str]:
    """Return the style of the `number`-th line of a figure."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def plain(text: str) -> str:
    """Return a text of the user's as figures take it: on one line, no mathematics, and shown."""
    text = " ".join(text.split()).replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text  # else matplotlib hides it


def tidy(axes: Axes) -> None:
    """Give axes the look that all figures share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def count_steps(axes: Axes, ticks: int) -> None:
    """Label the horizontal axis in agent steps, with at most this many ticks."""
    axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
