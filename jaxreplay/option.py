"""Hyperparameters as dataclass fields with help, bounds and a source.

A config is a frozen dataclass that subclasses `Config`. `option` declares each of its fields:

    @dataclasses.dataclass(frozen=True)
    class PERConfig(Config):
        alpha: float = option(0.6, "priority exponent", "Schaul et al. 2016, Tab. 3", at_least=0)
        sampling: Literal["stratified", "iid"] = option("stratified", "draws of a batch")

Values are validated when a config is constructed. Command lines and the documentation read the same
declarations. To share options among configs, declare them in a common base class.
"""

import copy
import dataclasses
import functools
import inspect
import math
import re
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, ParamSpec, Self, TypeVar

from jaxreplay._internal.arguments import Bounds, check_choice, check_kind

P = ParamSpec("P")
T = TypeVar("T")


def option(
    default: Any,
    help: str,
    source: str = "",
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    finite: bool = True,
    needs: tuple[str, ...] = (),
    whole_run: bool = False,
) -> Any:
    """Declare a hyperparameter of a `Config`; return its dataclass field.

    The annotation of the field decides which values are valid: `bool`, `int`, `float`, `str`, a
    `Literal` of names, a non-empty tuple `tuple[T, ...]` of one of these, and None if the
    annotation includes it. Bounds apply to every element of a tuple. NaN is never valid.

    Args:
      default: default value.
      help: one line for command lines and documentation, with units.
      source: paper and table of the default value.
      choices: valid names, if they are not listed in a `Literal`.
      at_least: inclusive lower bound.
      above: exclusive lower bound.
      at_most: inclusive upper bound; without an upper bound, the limit is 2^31 - 1 for int and 10^6
        for float. The same limits apply to negative numbers without a lower bound.
      below: exclusive upper bound.
      finite: whether infinity is invalid.
      needs: other options of the config that enable this one. Command lines accept it only if one
        of them is on.
      whole_run: `Config.for_run` replaces None by the number of gradient steps of the run.
    """
    bounds = Bounds(at_least, above, at_most, below, finite)
    metadata = {"help": help, "source": source, "choices": choices, "bounds": bounds}
    metadata |= {"needs": needs, "whole_run": whole_run}
    return dataclasses.field(default=default, metadata=metadata)


def override(config: type["Config"], name: str, default: Any, source: str = "") -> Any:
    """Declare an inherited option with another default; return its dataclass field.

    Example: `beta: float = override(PERConfig, "beta", 0.5, "Tab. 4")`.

    Args:
      config: the base class.
      name: the option, under the same name as in the base class.
      default: default value in the subclass.
      source: paper and table of this default value.
    """
    fields = {field.name: field for field in dataclasses.fields(config)}
    metadata = {**fields[name].metadata, "source": source}
    return dataclasses.field(default=default, metadata=metadata)


class Option(NamedTuple):
    """Declaration of one hyperparameter."""

    name: str
    default: Any
    help: str
    source: str
    kind: Any  # type of the value, or of each element of a tuple
    many: bool  # whether the value is a tuple
    optional: bool  # whether None is valid
    choices: tuple[str, ...]  # () allows any value
    bounds: Bounds
    needs: tuple[str, ...] = ()  # options that enable this one

    def check(self, value: Any) -> None:
        """Validate a value.

        Raises:
          ValueError: one line with the name of the option, the value and the valid values.
        """
        alternative = ", or none" if self.optional else ""
        if value is None:
            if self.optional:
                return
            raise ValueError(f"{self.name} is none: it needs a value")
        if self.many and not isinstance(value, tuple):
            raise ValueError(f"{self.name} is {value!r}: give a tuple, such as ({value!r},)")
        if self.many and not value:
            some = f" of {', '.join(self.choices)}" if self.choices else ""
            raise ValueError(f"{self.name} is empty: give one or more{some}{alternative}")
        singles: tuple[Any, ...] = value if self.many else (value,)
        for single in singles:
            if self.choices:
                check_choice(self.name, single, self.choices, alternative)
                continue
            check_kind(self.name, single, self.kind, alternative)
            if self.kind in (int, float):
                self.bounds.check(self.name, single, alternative)
                self._check_size(single, alternative)

    def _check_size(self, value: float, alternative: str) -> None:
        """Validate the size of a number that has no bound, for arithmetic in int32 and float32."""
        largest = 2**31 - 1 if self.kind is int else 1e6
        low, high = self.bounds.ends()
        if (high is None and largest < value < math.inf) or (
            low is None and -math.inf < value < -largest
        ):
            raise ValueError(
                f"{self.name} is {value}: it must be at most {largest:,.0f} in size{alternative}"
            )


@dataclasses.dataclass(frozen=True)
class Config:
    """Base class of configs, which validates all options on construction.

    Raises:
      ValueError: an option is invalid, or `check` raises; one line that names the option.
    """

    def __post_init__(self) -> None:
        for entry in options_of(type(self)):
            entry.check(getattr(self, entry.name))
        self.check()

    def for_run(self, updates: int) -> Self:
        """Return the config for a run of `updates` gradient steps.

        Horizons of schedules that are None (options with `whole_run`) become `updates`.

        Raises:
          ValueError: a horizon does not allow this number.
        """
        config = copy.copy(self)
        for field in dataclasses.fields(self):
            if field.metadata.get("whole_run") and getattr(self, field.name) is None:
                next(x for x in options_of(type(self)) if x.name == field.name).check(updates)
                # `dataclasses.replace` would validate all options; those of sweeps may be traced.
                object.__setattr__(config, field.name, int(updates))
        return config

    def check(self) -> None:
        """Validate combinations of options, after each option by itself; override it.

        Raises:
          ValueError: one line that names the options.
        """


@functools.cache
def options_of(config: type) -> tuple[Option, ...]:
    """Return the options of a config class, in the order of its dataclass fields.

    Options of base classes come first. Fields that were not declared with `option` are omitted.
    """
    hints = typing.get_type_hints(config)
    fields = [field for field in dataclasses.fields(config) if "help" in field.metadata]
    return tuple(_parse(field, hints[field.name]) for field in fields)


def _parse(field: dataclasses.Field, hint: Any) -> Option:
    arms = typing.get_args(hint)
    optional = type(None) in arms and len(arms) == 2
    if optional:
        (hint,) = (arm for arm in arms if arm is not type(None))
        arms = typing.get_args(hint)
    many = typing.get_origin(hint) is tuple and len(arms) == 2 and arms[1] is Ellipsis
    kind, choices = arms[0] if many else hint, field.metadata["choices"]
    if typing.get_origin(kind) is Literal:
        kind, choices = str, typing.get_args(kind)
    return Option(
        field.name, field.default, field.metadata["help"], field.metadata["source"],
        kind, many, optional, choices, field.metadata["bounds"], field.metadata["needs"],
    )  # fmt: skip


def check_entry(name: Any, config: Any, make: Any) -> None:
    """Validate a method or agent before it is registered.

    Args:
      name: its name on command lines.
      config: its `Config` class.
      make: function of a config.

    Raises:
      ValueError: one line: `name` is not a word of letters, digits and `_.:-`, `make` is not
        callable, or `check_class` raises.
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.:-]*", name):
        raise ValueError(f"name is {name!r}: it must be a word of letters, digits and '_', '.:-'")
    check_class(config)
    if not callable(make):
        raise ValueError(f"the function of '{name}' is {make!r}: give a function of its config")


def check_class(config: Any) -> None:
    """Validate the config class of a method or agent.

    Raises:
      ValueError: one line: it is not a subclass of `Config`, or an option has no default.
    """
    if not (isinstance(config, type) and issubclass(config, Config)):
        name = getattr(config, "__name__", repr(config))
        raise ValueError(
            f"{name} is not a config: give a dataclass that subclasses jaxreplay.option.Config"
        )
    missing = dataclasses.MISSING
    for field in dataclasses.fields(config):
        if field.default is missing and field.default_factory is missing:
            raise ValueError(f"option '{field.name}' of {config.__name__} has no default: give one")


def check_config_class(make: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to accept a `config` of the class of its default alone.

    Raises:
      ValueError: when the function is called, one line that names both classes.
    """
    signature = inspect.signature(make)
    default = signature.parameters["config"].default

    @functools.wraps(make)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        config = signature.bind(*args, **kwargs).arguments.get("config", default)
        if not isinstance(config, type(default)):
            kind = config if isinstance(config, type) else type(config)
            found = f"{'the class' if kind is config else 'a'} {kind.__name__}"
            raise ValueError(f"config is {found}: give a {type(default).__name__}(...)")
        return make(*args, **kwargs)

    return checked
