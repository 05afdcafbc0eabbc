"""The registry of replay methods, by the names that commands and files use."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from jaxreplay._internal.arguments import check_kind
from jaxreplay.option import check_entry
from jaxreplay.sampler import Method

MakeMethod = Callable[[Any], Method]  # accepts an instance of the method's config class


class MethodEntry(NamedTuple):
    """The config class and the factory of a replay method."""

    config: type[Any]  # subclass of `Config`
    method: MakeMethod
    discrete: Mapping[str, Any] = MappingProxyType({})  # defaults that differ for discrete actions

    def defaults(self, actions: Literal["discrete", "continuous"]) -> Any:
        """Return a config with the defaults for discrete or continuous actions."""
        return self.config(**self.discrete) if actions == "discrete" else self.config()


_METHODS: dict[str, MethodEntry] = {}
METHODS: Mapping[str, MethodEntry] = MappingProxyType(_METHODS)  # read-only; see `register`


def register(
    name: str,
    config: type[Any],
    method: MakeMethod,
    discrete: Mapping[str, Any] = MappingProxyType({}),
    *,
    replace: bool = False,
) -> None:
    """Add a custom method to `METHODS` under a name that commands accept.

    Args:
      name: unique name of the method, a single word.
      config: frozen dataclass of `option` fields, each with a default.
      method: function `method(config) -> Method`.
      discrete: maps option names to defaults for discrete actions, where they differ from `config`.
      replace: whether to replace a method that is already registered under `name`, for example
        when a notebook cell is run again.

    Raises:
      ValueError: If `name` is already registered or not a single word, `config` is not a dataclass
        of options, `method` is not callable, or `discrete` contains invalid options or values.
    """
    check_entry(name, config, method)
    check_kind("replace", replace, bool)
    entry = MethodEntry(config, method, discrete)
    _check_discrete(entry)
    if not replace and METHODS.get(name, entry) != entry:
        raise ValueError(
            f"name '{name}' is already registered for another replay method; choose another name, "
            "or pass replace=True"
        )
    _METHODS[name] = entry


def _check_discrete(entry: MethodEntry) -> None:
    if not isinstance(entry.discrete, Mapping):
        raise ValueError(
            f"discrete must map options of {entry.config.__name__} to values, got "
            f"{entry.discrete!r}"
        )
    names = {field.name for field in dataclasses.fields(entry.config)}
    for name in sorted(set(entry.discrete) - names):
        raise ValueError(
            f"discrete has the key '{name}', which is not an option of "
            f"{entry.config.__name__}: use names of its options"
        )
    entry.defaults("discrete")
