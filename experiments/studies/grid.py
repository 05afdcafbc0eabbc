"""The points of a study: every method on every task with every combination of settings."""

import argparse
import dataclasses
import difflib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.cli.parser import read_value
from experiments.runs.run_config import PREFIXES, SECTIONS, RunConfig, shown_value
from jaxreplay.option import Option, options_of

_MOST_POINTS = 100_000
_COMMON = ("seeds", "seed", "envs", "env", "replays", "replay", "agent")  # not settings of the grid


class Axis(NamedTuple):
    """One setting of the grid and its values, as the user wrote them."""

    name: str  # "replay.alpha", "per.alpha" for one label only, "agent.tau", "n_step"
    texts: tuple[str, ...]


class Place(NamedTuple):
    """Location of a setting in a run's configuration."""

    section: str
    field: str

    @property
    def name(self) -> str:
        """Name of the setting without a label, such as "replay.alpha" or "n_step"."""
        return PREFIXES[self.section] + self.field

    def value(self, config: RunConfig) -> Any:
        """Return the value of the setting in a configuration."""
        return getattr(getattr(config, self.section), self.field)


class Point(NamedTuple):
    """One method on one task with one combination of settings, for all seeds."""

    env: str
    label: str  # label of the method
    settings: Mapping[Place, Any]  # settings of the grid that apply to the run
    config: RunConfig

    @property
    def id(self) -> str:
        """Unique identifier within the study."""
        shown = (f"{place.name}={shown_value(value)}" for place, value in self.settings.items())
        return " ".join((self.env, self.label, *shown))

    @property
    def name(self) -> str:
        """Name within the task, such as "per_every4" or "per alpha=0.4", which claims refer to."""
        every = f"_every{self.config.loop.learn_every}" if LEARN_EVERY in self.settings else ""
        rest = {place: value for place, value in self.settings.items() if place != LEARN_EVERY}
        shown = (f"{place.name}={shown_value(value)}" for place, value in rest.items())
        return " ".join((self.label + every, *shown))


LEARN_EVERY = Place("loop", "learn_every")


def table_value(value: Any) -> Any:
    """Return the value of a setting as the table of results stores it: a number, or else text."""
    return value if type(value) in (int, float) else shown_value(value)


def read_axis(text: str) -> Axis:
    """Read `NAME=VALUE,VALUE` (argparse `type`); a value may have parts, as in "64 64".

    Raises:
      ArgumentTypeError: the name or a value is missing.
    """
    name, equals, values = text.partition("=")
    texts = tuple(value.strip() for value in values.split(","))
    if not name or not equals or not all(texts):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a setting with values: write NAME=VALUE,VALUE, such as "
            "replay.alpha=0.4,0.6"
        )
    return Axis(name.replace("-", "_"), texts)


def expand(
    axes: Sequence[Axis],
    bases: Mapping[tuple[str, str], RunConfig],
    defaults: bool = False,
    together: bool = False,
) -> list[Point]:
    """Return every point of a grid, ordered by task and then by method.

    Args:
      axes: axes of the grid.
      bases: (task, label) -> the configuration to which settings apply.
      defaults: whether to add each configuration of `bases` itself if the grid does not contain it.
      together: whether the n-th values of all axes make a point, instead of all combinations.

    Raises:
      ValueError: a setting is unknown or repeated, a value is invalid, `together` is True and axes
        differ in their number of values, or a combination of values is repeated.
    """
    check_names(axes, bases)
    lengths = {axis.name: len(axis.texts) for axis in axes}
    if together and len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(
            "'together' combines the n-th values of all settings, but settings have different "
            f"numbers of values ({counts}): give every setting equally many"
        )
    join = zip if together else itertools.product
    count = sum(
        (max if together else math.prod)(
            [1, *(len(axis.texts) for axis in place_axes(axes, label, base).values())]
        )
        for (_, label), base in bases.items()
    )
    if count > _MOST_POINTS:  # checked before making any of them
        raise ValueError(f"the grid has {count:,} points: reduce it to at most {_MOST_POINTS:,}")
    points = []
    for (env, label), base in bases.items():
        places = place_axes(axes, label, base)
        values = [read_values(axis, place, base, label) for place, axis in places.items()]
        tuples = join(*values) if values else [()]
        chosen = [dict(zip(places, own, strict=True)) for own in tuples]
        own = {place: place.value(base) for place in places}
        if defaults and own not in chosen:
            chosen.append(own)
        made: dict[str, Point] = {}
        for settings in chosen:
            point = Point(env, label, settings, with_settings(base, settings, env, label))
            if point.id in made and not together:  # arms may lack some of the settings
                raise ValueError(f"the grid contains {point.id} twice: remove one")
            made[point.id] = point
        points += made.values()
    return points


def check_names(axes: Sequence[Axis], bases: Mapping[tuple[str, str], RunConfig]) -> None:
    """Check that every setting is given once and has an effect on at least one run.

    Raises:
      ValueError: a setting is repeated, unknown or without effect; the message names it.
    """
    for axis in axes:
        if [other.name for other in axes].count(axis.name) > 1:
            raise ValueError(f"grid {axis.name} is given twice: give all its values at once")
        if not any(find(axis.name, label, config) for (_, label), config in bases.items()):
            raise ValueError(_unknown(axis.name, _names(bases)))
    taken: set[Axis] = set()
    for (_, label), base in bases.items():
        taken.update(place_axes(axes, label, base).values())
    for axis in axes:
        if axis not in taken:
            raise ValueError(
                f"grid {axis.name} has no effect: a setting for a single label overrides it in "
                f"every method that has it: remove {axis.name}"
            )


def check_fixed(
    axes: Sequence[Axis], bases: Mapping[tuple[str, str], RunConfig], given: Collection[str]
) -> None:
    """Check that a grid contains the value of each explicit option that it overrides.

    `given` has the names of the explicit options; options of methods have the label as prefix:
    "per.alpha", "agent.tau".

    Raises:
      ValueError: an option is overridden; the message names it and the ways to include its value.
    """
    for (_, label), base in bases.items():
        for place, axis in place_axes(axes, label, base).items():
            name = f"{label}.{place.field}" if place.section == "replay_options" else place.name
            value = place.value(base)
            if name in given and value not in read_values(axis, place, base, label):
                option = f"--{name}".replace("_", "-")
                raise ValueError(
                    f"{option} {shown_value(value)} has no effect because the grid's {axis.name} "
                    "overrides it: remove the option, add its value to the grid, or use --defaults "
                    "true"
                )


def lacking(
    axes: Sequence[Axis],
    bases: Mapping[tuple[str, str], RunConfig],
    instead: str = "these run once without it",
) -> list[str]:
    """Return a remark on each option of the grid that some methods or tasks do not have.

    `instead` says, in the words of the remark, what these methods or tasks do.
    """
    remarks = []
    for axis in axes:
        scope = axis.name.rpartition(".")[0]
        one = scope and scope not in ("agent", "env", "replay")  # for one label only
        without = [
            label if scope == "replay" else env
            for (env, label), config in bases.items()
            if find(axis.name, label, config) is None and not one
        ]
        if without:
            who = ", ".join(dict.fromkeys(without))
            remarks.append(f"{axis.name} does not apply to {who}: {instead}")
    return remarks


def base_points(
    points: Sequence[Point], bases: Mapping[tuple[str, str], RunConfig]
) -> dict[str, dict[str, str]]:
    """Return the points that equal their method's base: task -> label -> id of the point."""
    found: dict[str, dict[str, str]] = {}
    for point in points:
        if point.config == bases.get((point.env, point.label)):
            found.setdefault(point.env, {})[point.label] = point.id
    return found


def place_axes(axes: Sequence[Axis], label: str, base: RunConfig) -> dict[Place, Axis]:
    """Return the axes that apply to a method, by their place in its configuration."""
    places: dict[Place, Axis] = {}
    for axis in sorted(axes, key=lambda axis: axis.name.startswith(f"{label}.")):
        found = find(axis.name, label, base)  # axes for a single label come last and win
        if found is not None:
            places[found] = axis
    return places


def read_values(axis: Axis, place: Place, base: RunConfig, label: str) -> list[Any]:
    """Read and check each value of an axis on its own.

    Raises:
      ValueError: a value is invalid; the message names the first one and its location.
    """
    entry = option_at(place, base)
    values: list[Any] = []
    for number, text in enumerate(axis.texts, 1):
        at = f"grid {axis.name}, value {number} of {len(axis.texts)} ('{text}'), {label}"
        value = read_checked(entry, text, at)
        values.append(value)
    return values


def read_checked(entry: Option, text: str, at: str) -> Any:
    """Read and check one value of an option.

    Raises:
      ValueError: the value is invalid; the message starts with `at`, its location.
    """
    try:
        value = read_value(entry, text)
        entry.check(value)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise ValueError(f"{at}: {error}") from None
    return value


def with_settings(
    base: RunConfig, settings: Mapping[Place, Any], env: str, label: str
) -> RunConfig:
    """Return a configuration with the settings, after a check of their combination.

    Raises:
      ValueError: the settings are incompatible with one another.
    """
    parts = {}
    for section in dict.fromkeys(place.section for place in settings):
        own = {place.field: v for place, v in settings.items() if place.section == section}
        try:
            parts[section] = dataclasses.replace(getattr(base, section), **own)
        except ValueError as error:
            at = Point(env, label, settings, base).id
            raise ValueError(f"grid at {at}: {error}") from None
    return dataclasses.replace(base, **parts)


def find(name: str, label: str, config: RunConfig) -> Place | None:
    """Return where a configuration holds an option of the grid; None if it lacks the option.

    Args:
      name: name of the option in the grid, such as "learn_every" or "per.alpha".
      label: label of the method, which may be the prefix of the name.
      config: configuration of the run.
    """
    scope, _, field = name.rpartition(".")
    for section, prefix in PREFIXES.items():
        own = "replay_options" if scope == label else section
        if scope in (label, prefix.rstrip(".")) and field in _options(getattr(config, own)):
            return Place(own, field)
    return None


def option_at(place: Place, config: RunConfig) -> Option:
    """Return the declared option of a setting."""
    return _options(getattr(config, place.section))[place.field]


def _unknown(name: str, names: Sequence[str]) -> str:
    """Return an error message for a name that is not a setting of any run."""
    near = difflib.get_close_matches(name, [*names, *_COMMON], n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else ""
    if near and near[0] in _COMMON:
        hint = f": --{near[0]} is an option of the whole study"
    return f"unknown setting '{name}' in the grid{hint} (--help all lists all settings)"


def _names(bases: Mapping[tuple[str, str], RunConfig]) -> list[str]:
    """Return all names that a grid over these configurations can contain."""
    names: dict[str, None] = {}
    for (_, label), config in bases.items():
        for section in SECTIONS:
            for field in _options(getattr(config, section)):
                names[PREFIXES[section] + field] = None
                if section == "replay_options":
                    names[f"{label}.{field}"] = None
    return sorted(names)


def _options(config: Any) -> dict[str, Option]:
    return {entry.name: entry for entry in options_of(type(config))}
