"""The study of a sweep as its folder keeps it: validated values, from which `--resume` goes on.

A folder may come from somebody else. Nothing in it is read as words of a command, and a study has
no place for hosts, folders or modules to use: those are for the command line of the moment.
"""

import argparse
import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from experiments.runs import manifest, run_config
from experiments.runs.run_config import RunConfig
from experiments.sweeps import grid
from experiments.sweeps.grid import Axis
from experiments.sweeps.options import SearchOptions, SweepOptions
from experiments.sweeps.store import FACTS, Damaged, Store

# Options of one command alone: where it runs, and what it accepts.
_NOT_KEPT = frozenset({"on", "devices", "leave_state", "other_code"})
_Options = TypeVar("_Options", SweepOptions, SearchOptions)


class Study(NamedTuple):
    """All that a sweep was asked for, but for where it runs."""

    bases: dict[tuple[str, str], RunConfig]  # (task, label) -> the method without the grid
    axes: list[Axis]  # of the grid, or of a search's space
    options: SweepOptions
    how: SearchOptions

    def to_json(self) -> dict[str, Any]:
        """Return nested plain values."""
        bases: dict[str, dict[str, Any]] = {}
        for (env, label), config in self.bases.items():
            bases.setdefault(env, {})[label] = config.to_json()
        options = dataclasses.asdict(self.options)
        return {
            "bases": bases,
            "axes": {axis.name: list(axis.texts) for axis in self.axes},
            "options": {name: options[name] for name in options if name not in _NOT_KEPT},
            "search": dataclasses.asdict(self.how),
        }


class _Read(NamedTuple):
    """A study of which the configurations have yet to be checked."""

    bases: dict[tuple[str, str], Any]
    axes: list[Axis]
    options: SweepOptions
    how: SearchOptions


def of(store: Store) -> Study | None:
    """Return the study of a sweep; None: it began before folders kept studies.

    Raises:
      Damaged: a field is missing or unknown, or a value is not of its kind or within its bounds.
      ValueError: it needs a module that this command does not name.
    """
    read = _read(store)
    if read is None:
        return None
    bases = {key: run_config.from_folder(own, store.folder) for key, own in read.bases.items()}
    return Study(bases, *read[1:])


def options_of(store: Store) -> SweepOptions | None:
    """Return how a sweep is looked at, whatever modules it needs; None, and errors: as `of`."""
    read = _read(store)
    return read and read.options


def _read(store: Store) -> _Read | None:
    saved = store.facts.get("study")
    if saved is None:
        return None
    try:
        axes = [grid.read_axis(f"{name}={','.join(own)}") for name, own in saved["axes"].items()]
        options = _filled(SweepOptions(), saved["options"], _NOT_KEPT)
        how = _filled(SearchOptions(), saved["search"])
        envs = saved["bases"].items()
        bases = {(env, label): own for env, arms in envs for label, own in arms.items()}
        _check_names(bases)
    except (AttributeError, KeyError, TypeError, ValueError, argparse.ArgumentTypeError) as error:
        raise Damaged(f"{store.folder / FACTS} is damaged (study: {error}): restore it") from None
    return _Read(bases, axes, options, how)


def _check_names(bases: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Refuse a study without a method, or with other names than its configurations have."""
    if not bases:
        raise ValueError("it has no method")
    for (env, label), config in bases.items():
        if config["env"] != env or not re.fullmatch(manifest.LABEL, label):
            raise ValueError(f"'{env}' and '{label}' name no base of its own")


def _filled(
    usual: _Options, saved: Mapping[str, Any], apart: frozenset[str] = frozenset()
) -> _Options:
    """Return options with saved values, which have to be all but those apart."""
    wanted = {field.name for field in dataclasses.fields(usual)} - apart
    if odd := sorted(wanted ^ set(saved)):
        raise ValueError(f"option {odd[0]} is {'missing' if odd[0] in wanted else 'unknown'}")
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in saved.items()}
    return dataclasses.replace(usual, **values)
