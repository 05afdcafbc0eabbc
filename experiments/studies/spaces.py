"""Search spaces: the ranges and choices of every method's settings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.runs.run_config import RunConfig, shown_value
from experiments.studies import grid
from experiments.studies.grid import Axis, Place, Point

_DIGITS = 4  # significant digits of drawn numbers, for short command lines


class Range(NamedTuple):
    """Numbers from `low` to `high`, inclusive."""

    low: float
    high: float
    log: bool  # uniform in the logarithm
    whole: bool  # integers only

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a number."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        if self.log:
            return self.near(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self.near(rng.uniform(low, high))

    def near(self, value: float) -> float:
        """Return the nearest number of the range, rounded to an integer or to four digits."""
        rounded = round(value) if self.whole else float(f"{value:.{_DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    @property
    def size(self) -> float:
        """Number of values in the range."""
        return self.high - self.low + 1 if self.whole else math.inf

    @property
    def ends(self) -> tuple[float, ...]:
        """Both ends, which represent all values in validation."""
        return self.low, self.high

    @property
    def text(self) -> str:
        """The range in the syntax of the command line."""
        return f"{self.low}:{self.high}{':log' * self.log}"

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', uniform in the logarithm' * self.log}"


class Choices(NamedTuple):
    """A finite set of values of any type."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw one of the values."""
        return self.values[rng.integers(len(self.values))]

    @property
    def size(self) -> float:
        """Number of values."""
        return len(self.values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values, each of which validation checks."""
        return self.values

    @property
    def text(self) -> str:
        """The values in the syntax of the command line."""
        return ",".join(map(shown_value, self.values))

    def __str__(self) -> str:
        return f"of {', '.join(map(shown_value, self.values))}"


Space = Mapping[Place, Range | Choices]  # search space of one method on one task


def read(
    axes: Sequence[Axis], bases: Mapping[tuple[str, str], RunConfig]
) -> dict[tuple[str, str], Space]:
    """Return the search spaces by task and label; {} for a method without any of the settings.

    Args:
      axes: settings with values, or with one text `LOW:HIGH` or `LOW:HIGH:log`.
      bases: (task, label) -> the configuration to which settings apply.

    Raises:
      ValueError: a setting is unknown or repeated, or a value or a bound is invalid.
    """
    grid.check_names(axes, bases, "space")
    found: dict[tuple[str, str], Space] = {}
    for (env, label), base in bases.items():
        places = grid.place_axes(axes, label, base)
        found[env, label] = {
            place: _read(axis, place, base, label) for place, axis in places.items()
        }
    return found


def point(env: str, label: str, base: RunConfig, settings: Mapping[Place, Any]) -> Point:
    """Return the point of a method with settings from its space.

    Raises:
      ValueError: the settings are incompatible with one another.
    """
    config = grid.with_settings(base, settings, env, label, "space")
    return Point(env, label, dict(settings), config)


def default(env: str, label: str, base: RunConfig, space: Space) -> Point:
    """Return the point of a method with its default values of the searched settings."""
    own = {place: place.value(base) for place in space}
    return Point(env, label, own, base)


def corners(env: str, label: str, base: RunConfig, space: Space) -> list[Point]:
    """Return points for validation of a space, with one setting at a time at each of its ends.

    Raises:
      ValueError: a value is incompatible with the other settings of the method.
    """
    own = default(env, label, base, space).settings
    return [
        point(env, label, base, {**own, place: value})
        for place, chosen in space.items()
        for value in chosen.ends
    ]


def _read(axis: Axis, place: Place, base: RunConfig, label: str) -> Range | Choices:
    """Read the range or the choices of a setting."""
    if len(axis.texts) > 1 or ":" not in axis.texts[0]:
        return Choices(tuple(grid.read_values(axis, place, base, label, "space")))
    entry, (text,) = grid.option_at(place, base), axis.texts
    words = text.split(":")
    if entry.many or entry.kind not in (int, float):
        raise ValueError(
            f"space {axis.name} is '{text}', but {entry.name} is not a number: list its values, "
            "separated by commas"
        )
    if len(words) not in (2, 3) or words[2:] not in ([], ["log"]):
        raise ValueError(f"space {axis.name} is '{text}': write LOW:HIGH or LOW:HIGH:log")
    low, high = (
        grid.read_checked(entry, word, f"space {axis.name}, {which} end ('{word}'), {label}")
        for word, which in zip(words, ("lower", "upper"), strict=False)
    )
    if low is None or high is None or not math.isfinite(low) or not math.isfinite(high):
        raise ValueError(f"space {axis.name} is '{text}': both ends must be finite numbers")
    if low >= high:
        raise ValueError(f"space {axis.name} is '{text}': the lower end must be below the upper")
    log = len(words) == 3
    if log and low <= 0:
        raise ValueError(
            f"space {axis.name} is '{text}': a logarithmic scale needs a lower end above 0"
        )
    return Range(low, high, log, entry.kind is int)
