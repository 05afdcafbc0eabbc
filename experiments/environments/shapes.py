"""Flat shapes to render environments with, by Pillow: they need no screen and no OpenGL."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

Array = np.ndarray
Point = tuple[float, float]

BLACK, GREY, BLUE, RED, GREEN, SAND = (
    "#222222",
    "#b0b0b0",
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#c9a86a",
)
_OVERSAMPLING = 3  # rendered this many times as large, then shrunk: smooth edges
# Colours of MinAtar's channels. The first, which is always the player's, stands out.
_CHANNELS = np.array(
    [
        (255, 255, 255), (214, 39, 40), (120, 130, 140), (255, 187, 60), (44, 160, 44),
        (31, 119, 180), (148, 103, 189), (23, 190, 207), (227, 119, 194), (188, 189, 34),
    ],
    np.uint8,
)  # fmt: skip
_CELL = 24  # pixels of a cell's side


class Canvas:
    """A picture in the coordinates of what it shows; y points up."""

    def __init__(
        self, left: float, right: float, bottom: float, top: float, width: int = 320
    ) -> None:
        self._left, self._top = left, top
        self._scale = width * _OVERSAMPLING / (right - left)  # pixels per unit
        self._size = (width, round(width * (top - bottom) / (right - left)))
        self._image = Image.new("RGB", [_OVERSAMPLING * side for side in self._size], "white")
        self._draw = ImageDraw.Draw(self._image)

    def line(self, points: Sequence[Point], colour: str, thickness: float) -> None:
        """Add a line with round ends and corners through `points`; `thickness` in units."""
        pixels = [self._pixel(point) for point in points]
        self._draw.line(pixels, colour, max(1, round(thickness * self._scale)), joint="curve")
        for point in (points[0], points[-1]):
            self.disc(point, thickness / 2, colour)

    def disc(self, centre: Point, radius: float, colour: str) -> None:
        """Add a filled circle."""
        (x, y), r = self._pixel(centre), radius * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), colour)

    def polygon(self, points: Sequence[Point], colour: str) -> None:
        """Add a filled polygon."""
        self._draw.polygon([self._pixel(point) for point in points], colour)

    def picture(self) -> Array:
        """Return the picture, `[H, W, 3]` uint8."""
        return np.asarray(self._image.resize(self._size, Image.Resampling.BOX))

    def _pixel(self, point: Point) -> Point:
        return ((point[0] - self._left) * self._scale, (self._top - point[1]) * self._scale)


def beyond(start: Point, angle: float, length: float) -> Point:
    """Return the point at `length` from `start`; `angle` in rad, counter-clockwise from right."""
    return start[0] + length * math.cos(angle), start[1] + length * math.sin(angle)


def pendulum(angle: float) -> Array:
    """Render a rod; `angle` in rad from upright, counter-clockwise."""
    canvas = Canvas(-1.3, 1.3, -1.3, 1.3, width=240)
    canvas.line([(0.0, 0.0), beyond((0.0, 0.0), angle + math.pi / 2, 1.0)], RED, 0.2)
    canvas.disc((0.0, 0.0), 0.05, BLACK)
    return canvas.picture()


def cells(channels: Array) -> Array:
    """Render MinAtar's channels `[H, W, C]` in a colour each; the first ones lie on top."""
    channels = np.asarray(channels) > 0
    grid = np.zeros((*channels.shape[:2], 3), np.uint8)
    for channel in reversed(range(channels.shape[-1])):
        grid[channels[..., channel]] = _CHANNELS[channel % len(_CHANNELS)]
    picture = grid.repeat(_CELL, axis=0).repeat(_CELL, axis=1)
    picture[::_CELL] = picture[:, ::_CELL] = 30  # lines between cells
    return picture
