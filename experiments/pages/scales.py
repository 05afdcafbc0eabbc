"""Scales for metrics that run away: linear around zero, logarithmic beyond."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def symlog(values: ArrayLike) -> np.ndarray:
    """Return sign(x) log10(1 + |x|)."""
    values = np.asarray(values, np.float64)
    return np.sign(values) * np.log10(1.0 + np.abs(values))


def ticks(low: float, high: float) -> dict[str, Any]:
    """Return an axis of `symlog` values with ticks at zero and at powers of ten.

    Args:
      low: the least value that is shown.
      high: the greatest one.
    """
    largest = math.ceil(math.log10(1.0 + max(abs(low), abs(high))))
    apart = max(1, math.ceil(largest / 4))
    powers = [10.0**power for power in range(apart, largest + 1, apart)]
    below = [-power for power in reversed(powers)] if low < 0 else []
    values = [*below, 0.0, *(powers if high > 0 else [])]
    names = [_name(value) for value in values]
    return {"tickmode": "array", "tickvals": symlog(values).tolist(), "ticktext": names}


def logarithmic(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis for positive values, with ticks that have room.

    Args:
      low: the least value that is shown.
      high: the greatest one.
    """
    decades = math.log10(high / low)
    apart = {"dtick": "D2"} if 0.6 < decades < 2.5 else {}  # at 1, 2 and 5
    return {"type": "log", "tickformat": "~g", "nticks": 5, **apart}


def _name(value: float) -> str:
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    return f"{sign}10<sup>{round(math.log10(abs(value)))}</sup>"
