"""Bilinear resizing of grey pictures."""

import numpy as np

Array = np.ndarray


class Bilinear:
    """Resize `[..., H, W]` uint8 to `[..., h, w]`, as OpenCV's INTER_LINEAR does.

    Pixel centres are aligned, and each pixel is the mean of its four nearest neighbours, weighted
    by distance; pixels further away do not count. Results are rounded to the nearest integer;
    OpenCV's fixed-point arithmetic may differ by 1.

    Args:
      before: H and W.
      after: h and w.
    """

    def __init__(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        self._top, self._bottom, self._down = _taps(before[0], after[0])
        self._left, self._right, self._across = _taps(before[1], after[1])
        self._down = self._down[:, None]

    def __call__(self, pictures: Array) -> Array:
        """Return the pictures at the new size."""
        top, bottom = (
            pictures[..., rows, :].astype(np.float32) for rows in (self._top, self._bottom)
        )
        rows = top + self._down * (bottom - top)
        left, right = rows[..., self._left], rows[..., self._right]
        return np.rint(left + self._across * (right - left)).astype(np.uint8)


def _taps(before: int, after: int) -> tuple[Array, Array, Array]:
    """Return the two neighbours of every new pixel, and the weight of the second."""
    centre = (np.arange(after) + 0.5) * before / after - 0.5
    centre = np.clip(centre, 0, before - 1)
    first = np.floor(centre).astype(int)
    return first, np.minimum(first + 1, before - 1), (centre - first).astype(np.float32)
