"""Refusals of numbers and names: one line each that says what is wrong and what would do.

Everything here raises ValueError; NaN is always refused.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

_LARGEST = float(np.finfo(np.float32).max)


class Bounds(NamedTuple):
    """The interval that a number must lie in; None leaves an end open."""

    at_least: float | None = None
    above: float | None = None  # as `at_least`, the bound itself excluded
    at_most: float | None = None
    below: float | None = None  # as `at_most`, the bound itself excluded
    finite: bool = True  # refuse infinity, too

    def check(self, name: str, value: float, alternative: str = "") -> None:
        """Refuse a `value` outside; `alternative` ends the message with what else would do.

        A value that a program has as an input is not known while it is traced: who calls the
        program has to check it.
        """
        if isinstance(value, Tracer):
            return
        if isinstance(value, jax.Array | np.ndarray) and value.ndim == 0:
            value = value.item()
        check_kind(name, value, float, alternative)
        if self.finite and abs(value) > _LARGEST:
            raise ValueError(f"{name} is {value}: it must be finite{alternative}")
        if not self._hold(value):
            raise ValueError(f"{name} is {value}: it must {self._demand()}{alternative}")

    def inequality(self, name: str) -> str:
        """Return the bounds as an inequality of `name`, such as "name>=1" or "0<name<=1"."""
        low, high = self.ends()
        least = "=" if self.above is None else ""
        most = "=" if self.below is None else ""
        if low is not None and high is not None:
            return f"{low:g}<{least}{name}<{most}{high:g}"
        if low is not None:
            return f"{name}>{least}{low:g}"
        return name if high is None else f"{name}<{most}{high:g}"

    def ends(self) -> tuple[float | None, float | None]:
        """Return the lower and the upper bound, whether they are excluded or not."""
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        return low, high

    def _hold(self, value: float) -> bool:
        return (
            not math.isnan(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def _demand(self) -> str:
        """Return what a number must do to lie within."""
        low, high = self.ends()
        if low is not None and high is not None:
            left = "[" if self.above is None else "("
            right = "]" if self.below is None else ")"
            return f"lie in {left}{low:g}, {high:g}{right}"
        if low == 0:
            return "not be negative" if self.above is None else "be positive"
        if low is not None:
            return f"be {'at least' if self.above is None else 'above'} {low:g}"
        if high is not None:
            return f"be {'at most' if self.below is None else 'below'} {high:g}"
        return "be a number"


_KINDS: Mapping[type, tuple[str, tuple[type, ...]]] = MappingProxyType(
    {
        bool: ("true or false", (bool, np.bool_)),
        int: ("a whole number", (int, np.integer)),
        float: ("a number", (int, float, np.integer, np.floating)),
        str: ("a name", (str,)),
    }
)


def check_kind(name: str, value: Any, kind: Any, alternative: str = "") -> None:
    """Refuse a value of another kind; kinds other than bool, int, float and str allow any."""
    words, types = _KINDS.get(kind, ("", (object,)))
    if not isinstance(value, types) or (isinstance(value, bool) and kind in (int, float)):
        raise ValueError(f"{name} is {value!r}: it must be {words}{alternative}")


def check_choice(name: str, value: str, choices: Sequence[str], alternative: str = "") -> None:
    """Refuse what is none of `choices`; `alternative` ends the message with what else would do."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: use one of {', '.join(choices)}{alternative}")
