"""When an axis of numbers is logarithmic."""

from collections.abc import Sequence

DIVERGED = 1e5  # metrics beyond it take an axis on which the other lines stay visible
_WIDE = 10.0  # largest over smallest value of a setting


def logarithmic(values: Sequence[float]) -> bool:
    """Tell whether values of a setting span so much that their axis is logarithmic."""
    return min(values) > 0 and max(values) / min(values) >= _WIDE
