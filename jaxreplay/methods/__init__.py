"""Replay methods, one file each; `METHODS` maps their names to config and factory.

A method of your own is a file with a frozen config dataclass and a `method(config)` that
returns a `jaxreplay.Method`; `register` gives it a name, and the commands take the dotted
name of its module. To add one here, write a file and a line below.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from jaxreplay._internal.arguments import check_kind
from jaxreplay.methods import (
    ere,
    ero,
    lap,
    latest,
    ners,
    pal,
    parts,
    per,
    proportional,
    pser,
    rank,
    refer,
    sequences,
    uniform,
    windows,
)
from jaxreplay.option import check_entry
from jaxreplay.sampler import Method

__all__ = [
    "METHODS",
    "MakeMethod",
    "MethodEntry",
    "ere",
    "ero",
    "lap",
    "latest",
    "ners",
    "pal",
    "parts",
    "per",
    "proportional",
    "pser",
    "rank",
    "refer",
    "register",
    "sequences",
    "uniform",
    "windows",
]


MakeMethod = Callable[[Any], Method]  # from an instance of the entry's config


class MethodEntry(NamedTuple):
    """How to make a method from its options."""

    config: type[Any]  # a frozen dataclass of `option` fields
    method: MakeMethod
    discrete: Mapping[str, Any] = MappingProxyType({})  # other defaults where actions are discrete

    def defaults(self, actions: Literal["discrete", "continuous"]) -> Any:
        """Return the config with the defaults for a kind of actions."""
        return self.config(**self.discrete) if actions == "discrete" else self.config()


_METHODS = {
    "uniform": MethodEntry(uniform.UniformConfig, uniform.method),
    "per": MethodEntry(per.PERConfig, per.method),
    "rank": MethodEntry(rank.RankConfig, rank.method),
    "pser": MethodEntry(pser.PSERConfig, pser.method),
    "lap": MethodEntry(lap.LAPConfig, lap.method, lap.DISCRETE),
    "pal": MethodEntry(pal.PALConfig, pal.method, pal.DISCRETE),
    "ere": MethodEntry(ere.EREConfig, ere.method),
    "ero": MethodEntry(ero.EROConfig, ero.method),
    "ners": MethodEntry(ners.NERSConfig, ners.method),
    "refer": MethodEntry(refer.ReFERConfig, refer.method),
    "windows": MethodEntry(windows.WindowsConfig, windows.method),
    "latest": MethodEntry(latest.LatestConfig, latest.method),
}
METHODS: Mapping[str, MethodEntry] = MappingProxyType(_METHODS)  # a view: `register` adds to it


def register(
    name: str,
    config: type[Any],
    method: MakeMethod,
    discrete: Mapping[str, Any] = MappingProxyType({}),
    *,
    replace: bool = False,
) -> None:
    """Make a method of your own known by a name, to whatever asks `METHODS`.

    Args:
      name: that no other method has.
      config: a frozen dataclass of `option` fields, all with defaults.
      method: `method(config) -> Method`.
      discrete: options that have other defaults for agents with discrete actions.
      replace: take the name from a method that has it, as when a notebook's cell runs again.

    Raises:
      ValueError: another method has the name, it is not a word, the config is no such class, the
        method can't be called, or the config does not allow the options in `discrete`.
    """
    check_entry(name, config, method)
    check_kind("replace", replace, bool)
    entry = MethodEntry(config, method, discrete)
    _check_discrete(entry)
    if not replace and METHODS.get(name, entry) != entry:
        raise ValueError(
            f"there is another replay method '{name}': use another name, or replace=True"
        )
    _METHODS[name] = entry


def _check_discrete(entry: MethodEntry) -> None:
    if not isinstance(entry.discrete, Mapping):
        raise ValueError(
            f"the defaults of {entry.config.__name__} where actions are discrete are "
            f"{entry.discrete!r}: give a mapping of options to values"
        )
    names = {field.name for field in dataclasses.fields(entry.config)}
    for name in sorted(set(entry.discrete) - names):
        raise ValueError(
            f"{entry.config.__name__} has no option '{name}', for which there is a default where "
            "actions are discrete: leave it out"
        )
    entry.defaults("discrete")
