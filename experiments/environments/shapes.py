"""Pictures from cells, or from lines and discs, for environments whose packages render none."""

from collections.abc import Iterable
from typing import Any

import numpy as np

Array = np.ndarray

BLACK, RED, GREEN = "#222222", "#d62728", "#2ca02c"
_CELL = 24  # pixels of a cell's side


def picture(
    limits: tuple[float, float, float, float],
    lines: Iterable[tuple[Any, float, str]] = (),
    discs: Iterable[tuple[Any, float, str]] = (),
) -> Array:
    """Return a picture `[H, W, 3]` uint8, 240 pixels wide.

    Args:
      limits: left, right, bottom and top of the coordinate system; y points up.
      lines: points `[n, 2]`, thickness and colour of each.
      discs: centre, radius and colour of each, above the lines.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    left, right, bottom, top = limits
    figure = Figure((2.4, 2.4 * (top - bottom) / (right - left)), dpi=100)
    canvas, axes = FigureCanvasAgg(figure), figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    for points, thickness, colour in lines:
        x, y = np.transpose(np.asarray(points, float))
        points_per_unit = 72 * 2.4 / (right - left)
        axes.plot(x, y, colour, linewidth=thickness * points_per_unit, solid_capstyle="round")
    for (x, y), radius, colour in discs:
        axes.add_patch(Circle((float(x), float(y)), radius, color=colour, zorder=3))
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def cells(colours: Array) -> Array:
    """Return a picture `[H, W, 3]` uint8 of cells with `colours` `[h, w, 3]`."""
    image = np.asarray(colours, np.uint8).repeat(_CELL, axis=0).repeat(_CELL, axis=1)
    image[::_CELL] = image[:, ::_CELL] = 30  # lines between cells
    return image
