"""The common style of all figures."""

import io
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.files.disk import write_bytes
from experiments.statistics.counts import FEWEST_SEEDS
from jaxreplay.methods import METHODS
from jaxreplay.saving import printable

# Okabe and Ito's palette, which colour-blind readers can distinguish, without yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
# Colours of methods in all figures, in the order of the registry; uniform replay is grey.
_OF_METHODS = (
    "#7f7f7f", "#D55E00", "#E69F00", "#009E73", "#0072B2", "#56B4E9", "#CC79A7", "#8C564B",
    "#6A3D9A", "#B2182B", "#6B8E23", "#000000", "#556B2F", "#FF7F50", "#4682B4", "#1B7F79",
    "#A6761D", "#E7298A", "#4B5CC4", "#9E9AC8", "#3D2B1F", "#2F8F9D", "#C2A000", "#7A3E65",
    "#5F9E4A", "#DAA520", "#800000", "#BA55D3", "#2E8B57", "#708238", "#4B0082",
    "#C71585",
)  # fmt: skip
# Names of methods in sentences and figures; other labels are shown unchanged.
NAMES = {
    "uniform": "uniform replay", "per": "PER", "rank": "rank-based PER", "pser": "PSER",
    "lap": "LAP", "pal": "PAL", "ere": "ERE", "ero": "ERO", "ners": "NERS", "refer": "ReF-ER",
    "cer": "CER", "reshuffled": "RR-C", "faded": "faded LAP",
    "curious": "curious replay", "relo": "ReLo", "laber": "LaBER", "eper": "EPER",
    "reverse": "reverse replay", "la3p": "LA3P", "reaper": "ReaPER", "masked": "RR-M",
    "her": "HER", "sil": "SIL", "discor": "DisCor", "geometric": "geometric replay", "uper": "UPER",
}  # fmt: skip
INK, FAINT = "#333333", "#8a8a8a"

Style = Mapping[str, Any]  # color, linestyle, linewidth and zorder of a line
Styles = Mapping[str, Style]  # label -> style


def make_figure(width: float, height: float, dpi: int = 100) -> Figure:
    """Make an empty figure of a size in inches, without the global state of pyplot."""
    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def save(figure: Figure, path: str | os.PathLike) -> None:
    """Write a reproducible PNG: equal figures give equal bytes."""
    # `savefig` would draw a figure of this layout twice.
    canvas, content = FigureCanvasAgg(figure), io.BytesIO()
    canvas.print_png(content, metadata={"Software": None}, pil_kwargs={"optimize": True})
    write_bytes(Path(path), content.getvalue())


def styles_of(methods: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return a style for each label; a method has the same colour in every figure.

    Args:
      methods: replay method of each label. Of several labels with the same method, the first is
        solid and the others are dashed.
    """
    known = list(METHODS)[: len(_OF_METHODS)]
    taken = {known.index(method) for method in methods.values() if method in known}
    # Labels without a known method get colours that are not used yet, but never grey.
    free = [number for number in range(1, len(_OF_METHODS)) if number not in taken]
    free = free or list(range(1, len(_OF_METHODS)))
    others: dict[str, int] = {}
    styles, seen = {}, Counter()
    for label, method in methods.items():
        if method in known:
            number = known.index(method)
        else:
            number = free[others.setdefault(method, len(others)) % len(free)]
        colour = _OF_METHODS[number]
        width = 3.2 if number == 0 else 1.7  # keeps uniform visible under lines that overlap it
        dashes = DASHES[seen[method] % len(DASHES)]
        styles[label] = {
            "color": colour, "linestyle": dashes, "linewidth": width, "zorder": 3 - (number == 0)
        }  # fmt: skip
        seen[method] += 1
    return styles


def warn_of_few(figure: Figure, seeds: int) -> None:
    """Add a note below a figure if it has too few seeds for a verdict."""
    if seeds < FEWEST_SEEDS:
        note = {"x": 0.99, "ha": "right", "fontsize": 9, "color": "#B2182B"}
        count = "one seed carries" if seeds == 1 else f"{seeds} seeds carry"
        figure.supxlabel(f"pilot: {count} no verdict", **note)  # the layout reserves space for it


def plain(text: str) -> str:
    """Return a user's text for matplotlib: one line, printable, without math mode; idempotent.

    A zero-width space precedes a leading "_", because matplotlib hides labels that start with "_".
    """
    text = printable(" ".join(text.removeprefix("\u200b").split()))
    text = re.sub(r"(?<!\\)\$", r"\\$", text)
    return f"\u200b{text}" if text.startswith("_") else text  # matplotlib hides labels with "_"


def tidy(axes: Axes) -> None:
    """Apply the common style to axes."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def count_steps(axes: Axes, ticks: int) -> None:
    """Label the horizontal axis in agent steps, with at most this many ticks."""
    axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
