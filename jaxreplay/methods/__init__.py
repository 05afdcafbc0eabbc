"""Replay methods, one module each; `METHODS` maps their names to config and factory.

To write your own, define a frozen dataclass of options and a function `method(config)` that returns
a `jaxreplay.Method`. `register` adds it to `METHODS`; commands also accept the dotted name of its
module. To add one to the library, write a module and a line below.
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


MakeMethod = Callable[[Any], Method]  # takes an instance of the entry's config


class MethodEntry(NamedTuple):
    """The config and the factory of a method."""

    config: type[Any]  # a frozen dataclass of `option` fields
    method: MakeMethod
    discrete: Mapping[str, Any] = MappingProxyType({})  # other defaults for discrete actions

    def defaults(self, actions: Literal["discrete", "continuous"]) -> Any:
        """Return the config with the defaults for discrete or continuous actions."""
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
METHODS: Mapping[str, MethodEntry] = MappingProxyType(_METHODS)  # read-only; `register` adds to it


def register(
    name: str,
    config: type[Any],
    method: MakeMethod,
    discrete: Mapping[str, Any] = MappingProxyType({}),
    *,
    replace: bool = False,
) -> None:
    """Add a method of your own to `METHODS`, so that commands accept its name.

    Args:
      name: name of the method, a word that no other method uses.
      config: a frozen dataclass of `option` fields, all with defaults.
      method: `method(config) -> Method`.
      discrete: options with other defaults for agents with discrete actions, and these defaults.
      replace: replace a method of the same name, for instance when a notebook cell runs again.

    Raises:
      ValueError: `name` is taken or not a word, `config` is not such a dataclass, `method` is not
        callable, or `discrete` has options or values that the config does not allow.
    """
    check_entry(name, config, method)
    check_kind("replace", replace, bool)
    entry = MethodEntry(config, method, discrete)
    _check_discrete(entry)
    if not replace and METHODS.get(name, entry) != entry:
        raise ValueError(
            f"name is '{name}': another replay method has it; use another name, or replace=True"
        )
    _METHODS[name] = entry


def _check_discrete(entry: MethodEntry) -> None:
    if not isinstance(entry.discrete, Mapping):
        raise ValueError(
            f"discrete of {entry.config.__name__} is {entry.discrete!r}: it must be a mapping of "
            "options to values"
        )
    names = {field.name for field in dataclasses.fields(entry.config)}
    for name in sorted(set(entry.discrete) - names):
        raise ValueError(f"discrete has '{name}': it must be an option of {entry.config.__name__}")
    entry.defaults("discrete")
