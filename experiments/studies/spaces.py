"""What a search chooses settings from: for each method those that it has, as ranges or choices."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.runs.run_config import RunConfig
from experiments.studies import grid
from experiments.studies.grid import Axis, Place, Point
from jaxreplay.option import Option

_DIGITS = 4  # of a number that is drawn: enough to tell, few enough to type


class Range(NamedTuple):
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool  # evenly over orders of magnitude
    whole: bool  # whole numbers

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a number."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        if self.log:
            return self.near(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self.near(rng.uniform(low, high))

    def near(self, value: float) -> float:
        """Return the nearest number that a run can have: whole, or of few digits."""
        rounded = round(value) if self.whole else float(f"{value:.{_DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    @property
    def size(self) -> float:
        """How many numbers there are."""
        return self.high - self.low + 1 if self.whole else math.inf

    @property
    def ends(self) -> tuple[float, ...]:
        """What stands for all of them where they are checked."""
        return self.low, self.high

    def holds(self, value: Any) -> bool:
        """Tell whether a value is one of them."""
        return value is not None and self.low <= value <= self.high

    @property
    def text(self) -> str:
        """How it is written on the command line."""
        return f"{self.low}:{self.high}{':log' * self.log}"

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', evenly in the logarithm' * self.log}"


class Choices(NamedTuple):
    """Values of any kind."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw one of them."""
        return self.values[rng.integers(len(self.values))]

    @property
    def size(self) -> float:
        """How many there are."""
        return len(self.values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All of them, where they are checked."""
        return self.values

    def holds(self, value: Any) -> bool:
        """Tell whether a value is one of them."""
        return value in self.values

    @property
    def text(self) -> str:
        """How they are written on the command line."""
        return ",".join(map(grid.shown_value, self.values))

    def __str__(self) -> str:
        return f"of {', '.join(map(grid.shown_value, self.values))}"


Space = Mapping[Place, Range | Choices]  # of one method on one task


def read(
    axes: Sequence[Axis], bases: Mapping[tuple[str, str], RunConfig]
) -> dict[tuple[str, str], Space]:
    """Return what is searched, by task and label; {} for a method that has none of the settings.

    Args:
      axes: settings with values, or with one text `LOW:HIGH` or `LOW:HIGH:log`.
      bases: (task, label) -> the configuration that settings are put into.

    Raises:
      ValueError: one line: a setting is unknown or stands twice, or a value or an end is refused.
    """
    grid.check_names(axes, bases, "space")
    found: dict[tuple[str, str], Space] = {}
    for (env, label), base in bases.items():
        places = grid.placed(axes, label, base)
        found[env, label] = {
            place: _read(axis, grid.option_at(place, base), label) for place, axis in places.items()
        }
    return found


def point(env: str, label: str, base: RunConfig, settings: Mapping[Place, Any]) -> Point:
    """Return a method with settings of its space.

    Raises:
      ValueError: one line: they do not go together.
    """
    config = grid.with_settings(base, settings, env, label, "space")
    return Point(env, label, dict(settings), config)


def default(env: str, label: str, base: RunConfig, space: Space) -> Point:
    """Return a method as it is without a search, its settings named as the others' are."""
    own = {place: getattr(getattr(base, place.section), place.field) for place in space}
    return Point(env, label, own, base)


def corners(env: str, label: str, base: RunConfig, space: Space) -> list[Point]:
    """Return points that stand for a space where it is checked: one setting at a time at its ends.

    Raises:
      ValueError: one line: a value does not go with the method's other settings.
    """
    own = default(env, label, base, space).settings
    return [
        point(env, label, base, {**own, place: value})
        for place, chosen in space.items()
        for value in chosen.ends
    ]


def _read(axis: Axis, entry: Option, label: str) -> Range | Choices:
    """Read what a setting is chosen from."""
    if len(axis.texts) > 1 or ":" not in axis.texts[0]:
        return Choices(tuple(grid.read_values(entry, axis, "space", label)))
    (text,) = axis.texts
    words = text.split(":")
    if entry.many or entry.kind not in (int, float):
        raise ValueError(
            f"space {axis.name} is '{text}', and {entry.name} is no number: list its values with "
            "commas between them"
        )
    if len(words) not in (2, 3) or words[2:] not in ([], ["log"]):
        raise ValueError(f"space {axis.name} is '{text}': write LOW:HIGH or LOW:HIGH:log")
    low, high = (
        grid.read_checked(entry, word, f"space {axis.name}, {which} end ('{word}'), {label}")
        for word, which in zip(words, ("lower", "upper"), strict=False)
    )
    if low is None or high is None or not math.isfinite(low) or not math.isfinite(high):
        raise ValueError(f"space {axis.name} is '{text}': both ends have to be finite numbers")
    if low >= high:
        raise ValueError(f"space {axis.name} is '{text}': its lower end is not below its upper")
    log = len(words) == 3
    if log and low <= 0:
        raise ValueError(
            f"space {axis.name} is '{text}': on a logarithmic scale the lower end has to be above 0"
        )
    return Range(low, high, log, entry.kind is int)
