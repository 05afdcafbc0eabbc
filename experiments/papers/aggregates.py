"""Figures with two blocks of panels: the paper's aggregate over seeds above, ours below."""

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from scipy.spatial import KDTree

from experiments.figures.style import INK, make_figure, plain
from experiments.files.disk import write_bytes
from experiments.statistics.bootstrap import bootstrap_interval, iqm
from experiments.statistics.counts import FEWEST_SEEDS
from experiments.statistics.primary import PrimaryMetric
from experiments.statistics.verdicts import Verdict

Band = tuple[np.ndarray, np.ndarray, np.ndarray]  # line, lower and upper edge of the band, each [x]


def _around(middle: np.ndarray, spread: np.ndarray) -> Band:
    return middle, middle - spread, middle + spread


def _spread(values: np.ndarray) -> np.ndarray:
    return values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])


def _percentiles(low: float, high: float) -> Callable[[np.ndarray], Band]:
    def band(values: np.ndarray) -> Band:
        return (np.median(values, axis=0), *np.percentile(values, [low, high], axis=0))

    return band


def _interval(values: np.ndarray) -> Band:
    """Return the mean and its normal 95 % confidence interval (1.96 standard errors)."""
    return _around(values.mean(axis=0), 1.96 * _spread(values) / np.sqrt(len(values)))


def _ours(values: np.ndarray) -> Band:
    middle = iqm(values)
    return (middle, *bootstrap_interval(values)) if len(values) > 1 else (middle, middle, middle)


OURS = "IQM, 95 % interval"
# Functions from values [S, x] to a line and its band, by name.
AGGREGATES: Mapping[str, Callable[[np.ndarray], Band]] = {
    "mean, std": lambda values: _around(values.mean(axis=0), _spread(values)),
    "mean, 95 % interval": _interval,
    "mean, 20 to 80 %": lambda values: (
        values.mean(axis=0), *np.percentile(values, [20, 80], axis=0)
    ),
    "median, range": _percentiles(0, 100),
    "median, quartiles": _percentiles(25, 75),
    "median, 20 to 80 %": _percentiles(20, 80),
    OURS: _ours,
}  # fmt: skip


class Compared(NamedTuple):
    """Comparison of the arms of a task with a baseline, and the verdicts about claims."""

    rows: list[Verdict]
    claims: list[Verdict]
    metric: PrimaryMetric
    baseline: str


class Plotted(NamedTuple):
    """Data to plot."""

    frame: pd.DataFrame  # columns arm, seed and others; its order is the order of the panels
    methods: Mapping[
        str, str
    ]  # arm -> replay method, which decides the colour; its order is the order of the arms
    title: str
    judged: Callable[[], Compared] | None = None  # compares the arms with the baseline
    table: pd.DataFrame | None = None  # the whole table; `frame` has some of its rows


_MOST_COLUMNS = 3
_HEAD = 1.0  # height of the title in inches
_ENTRY = 0.19  # height of a row of a legend in inches
_KEPT = 128  # number of most frequent colours that the palette represents exactly
_EXACT = Image.Dither.NONE
_LEGEND = {"frameon": False, "fontsize": 8, "handlelength": 2.6}


def arms_of(plotted: Plotted, frame: pd.DataFrame) -> list[str]:
    """Return the arms of a frame in the order of `plotted.methods`, followed by all others."""
    there = dict.fromkeys(frame["arm"])
    return [arm for arm in plotted.methods if arm in there] + [
        arm for arm in there if arm not in plotted.methods
    ]


def places_of(frame: pd.DataFrame, panel: str) -> list[Any]:
    """Return the distinct values of column `panel`, in the order of the frame."""
    return list(dict.fromkeys(frame[panel])) if panel in frame else [""]


def rows_of(frame: pd.DataFrame, panel: str, place: Any) -> np.ndarray:
    """Return a mask `[rows]` of the rows that belong to a panel."""
    return (frame[panel] == place).to_numpy() if panel in frame else np.ones(len(frame), bool)


class Panel(NamedTuple):
    """Size of a panel in inches, and its legends."""

    width: float
    height: float
    margin: float = 0.0  # additional width of the figure
    legends: Sequence[Sequence[str]] = ()  # labels of the figure's legend, or of each panel's

    def columns(self, width: float) -> int:
        """Return the number of columns of a legend of this width in inches."""
        longest = max((len(each) for legend in self.legends for each in legend), default=1)
        return max(1, int(width / (0.6 + 0.07 * longest)))


def make(
    plotted: Plotted, frame: pd.DataFrame, aggregate: str, count: int, panel: Panel
) -> tuple[Figure, dict[tuple[str, int], Axes]]:
    """Make a figure with one block of panels per aggregate, stacked vertically.

    Args:
      plotted: data to plot, for the title.
      frame: rows to plot; with a single seed, the figure has only the paper's block.
      aggregate: name of the paper's aggregate, a key of AGGREGATES.
      count: number of panels per block.
      panel: size of a panel.

    Returns:
      The figure, and its axes by name of the aggregate and index of the panel.
    """
    kinds = list(dict.fromkeys([aggregate, OURS])) if seeds_of(frame) > 1 else [aggregate]
    per_row = -(-count // _MOST_COLUMNS)
    columns = -(-count // per_row)
    rows = per_row * len(kinds)
    width = max(6.0, panel.width * columns + panel.margin)
    height = _HEAD + panel.height * rows
    if len(panel.legends) > 1:
        longest = max(map(len, panel.legends))
        height += rows * (0.1 + _ENTRY * -(-longest // panel.columns(panel.width)))
    elif panel.legends:
        height += 0.1 + _ENTRY * -(-len(panel.legends[0]) // panel.columns(width))
    figure = make_figure(width, height)
    head(figure, plotted.title, seeds_of(frame))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.ravel():
        axes.set_axis_off()
    shown = {
        (kind, number): grid[block * per_row + number // columns, number % columns]
        for block, kind in enumerate(kinds)
        for number in range(count)
    }
    for axes in shown.values():
        axes.set_axis_on()
    return figure, shown


def seeds_of(frame: pd.DataFrame) -> int:
    """Return the largest number of seeds of an arm.

    Seeds are counted per arm because the control has other seeds than the other arms.
    """
    return int(frame.groupby("arm")["seed"].nunique().max())


def about(kind: str, own: pd.DataFrame, repeats: str) -> str:
    """Return the subtitle of a panel: name of the aggregate, and number of seeds."""
    counts = own.groupby("arm")["seed"].nunique()
    if counts.max() == 1:
        return f"1 {repeats.removesuffix('s')}"
    least = f"{counts.min()} to " if counts.min() < counts.max() else ""
    return f"{kind}, {least}{counts.max()} {repeats}"


def legend(figure: Figure, grid: Mapping[Any, Axes], panel: Panel) -> None:
    """Draw one legend for all panels at the bottom of the figure."""
    handles = {}
    for axes in grid.values():
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = [plain(each) for each in panel.legends[0] if plain(each) in handles]
    rows = -(-len(order) // panel.columns(figure.get_figwidth()))
    columns = -(-len(order) // rows)
    figure.legend(
        [handles[each] for each in order], order, loc="outside lower left", ncols=columns, **_LEGEND
    )


def legend_below(axes: Axes, panel: Panel) -> None:
    """Draw the legend of one panel below its x-axis."""
    place = {"loc": "upper center", "bbox_to_anchor": (0, 0, 1, 0), "borderaxespad": 4.4}
    axes.legend(**place, **_LEGEND, ncols=panel.columns(panel.width), columnspacing=1.2)


def write(figure: Figure, path: Path) -> None:
    """Write a PNG with a palette of 256 colours, a third of the size of one in full colour.

    The size matters because the figures of the papers are committed.
    """
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image, content = _with_palette(np.asarray(canvas.buffer_rgba())[..., :3]), io.BytesIO()
    image.save(content, "PNG", optimize=True)
    write_bytes(path, content.getvalue())


def _with_palette(pixels: np.ndarray) -> Image.Image:
    """Return `pixels` in 256 colours: the most frequent ones exactly, others as the nearest.

    Pillow's own quantisation changes all colours and merges the pale bands of different arms.
    """
    packed = pixels.astype(np.int64) @ [1 << 16, 1 << 8, 1]
    found, place, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = found[:, None] >> np.array([16, 8, 0]) & 255
    kept = colours[np.argsort(-counts, kind="stable")[:_KEPT]]
    others = Image.fromarray(pixels).quantize(
        256 - _KEPT, Image.Quantize.MAXCOVERAGE, dither=_EXACT
    )
    palette = np.concatenate([kept, np.reshape(others.getpalette() or [], (-1, 3))]).astype(
        np.uint8
    )
    nearest = KDTree(palette).query(colours)[1].astype(np.uint8)
    image = Image.fromarray(nearest[place].reshape(pixels.shape[:2]), "P")
    image.putpalette(palette.tobytes())
    return image


def head(figure: Figure, title: str, seeds: int | None = None) -> None:
    """Draw the title, wrapped to the width of the figure, with a caveat if seeds are few."""
    if seeds is not None and seeds < FEWEST_SEEDS:
        count = f"{seeds} seeds carry" if seeds > 1 else "1 seed carries"
        title = f"{title} (pilot: {count} no verdict)"
    lines = textwrap.wrap(plain(title), int(11 * figure.get_figwidth()))
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=11.5, color=INK)
