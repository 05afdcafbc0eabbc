"""Refusals of numbers and names: one line each that says what is wrong and what would do.

Everything here raises ValueError; NaN is always refused.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Bounds(NamedTuple):
    """The interval that a number must lie in; None leaves an end open."""

    at_least: float | None = None
    above: float | None = None  # as `at_least`, the bound itself excluded
    at_most: float | None = None
    below: float | None = None  # as `at_most`, the bound itself excluded
    finite: bool = True  # refuse infinity, too

    def check(self, name: str, value: float, alternative: str = "") -> None:
        """Refuse a `value` outside; `alternative` ends the message with what else would do."""
        if self.finite and math.isinf(value):
            raise ValueError(f"{name} is {value}: it must be finite{alternative}")
        if not self._hold(value):
            wanted = str(self) or "must be a number"
            raise ValueError(f"{name} is {value}: it {wanted}{alternative}")

    def _hold(self, value: float) -> bool:
        return (
            not math.isnan(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """Return what a number must do, such as "must lie in [0, 1]"; "" if it may be any."""
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        if low is not None and high is not None:
            left, right = "[("[self.above is not None], "])"[self.below is not None]
            return f"must lie in {left}{low:g}, {high:g}{right}"
        if low == 0:
            return "must be positive" if self.above is not None else "must not be negative"
        if low is not None:
            return f"must be {'at least' if self.above is None else 'above'} {low:g}"
        if high is not None:
            return f"must be {'at most' if self.below is None else 'below'} {high:g}"
        return ""


def check_choice(name: str, value: str, choices: Sequence[str], alternative: str = "") -> None:
    """Refuse what is none of `choices`; `alternative` ends the message with what else would do."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: use one of {', '.join(choices)}{alternative}")
