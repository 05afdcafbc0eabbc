"""Hyperparameters, declared as dataclass fields with a help text, bounds and a source.

A config is a frozen dataclass that subclasses `Config`. `option` declares each of its fields:

    @dataclasses.dataclass(frozen=True)
    class PERConfig(Config):
        alpha: float = option(0.6, "priority exponent", "Schaul et al. 2016, Tab. 3", at_least=0)
        sampling: Literal["stratified", "iid"] = option("stratified", "sampling scheme")

Values are validated when a config is constructed. Command-line options and documentation are
generated from the same declarations. Configs that share an option share its `Declaration`.
"""

import dataclasses
import functools
import math
import re
import typing
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from jaxreplay._internal.arguments import Bounds, check_choice, check_kind
from jaxreplay.traced import is_traced


class Declaration(NamedTuple):
    """Help, source and valid values of an option, declared once for all configs that have it.

    Args:
      help: one line for command-line help and documentation, including units.
      source: paper and table of the default value.
      choices: valid names, if the annotation is not a `Literal`.
      at_least: inclusive lower bound.
      above: exclusive lower bound.
      at_most: inclusive upper bound. Without an upper bound, finite values are at most L, and
        without a lower bound, at least -L, where L is 2^31 - 1 for int and 10^6 for float.
      below: exclusive upper bound.
      finite: whether values must be finite.
      needs: other options of the config, at least one of which must be enabled for command lines to
        accept this option.
      whole_run: whether `Config.for_run` replaces None by the run's number of gradient steps.
    """

    help: str
    source: str = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    finite: bool = True
    needs: tuple[str, ...] = ()
    whole_run: bool = False


def option(default: Any, help: str | Declaration, source: str = "", **details: Any) -> Any:
    """Declare a hyperparameter of a `Config` and return its dataclass field.

    The type annotation of the field defines the valid values. The type may be `bool`, `int`,
    `float`, `str`, a `Literal` of names, or `tuple[T, ...]` with one of these types as T. Tuples
    must not be empty. `| None` makes None valid. Bounds apply to every element of a tuple. NaN is
    never valid.

    Args:
      default: default value.
      help: help text, or a `Declaration` that several configs share.
      source: paper and table of the default value; "" means the source in the declaration.
      **details: other fields of a `Declaration`, such as `at_least`.

    Example:
      >>> ALPHA = Declaration("prioritisation exponent", "Schaul et al. 2016, Tab. 3", at_least=0)
      >>> field = option(0.5, ALPHA, "Brittain et al. 2019, Tab. 3")
    """
    declaration = help if isinstance(help, Declaration) else Declaration(help)
    declaration = declaration._replace(source=source or declaration.source, **details)
    return dataclasses.field(default=default, metadata={"declaration": declaration})


class Option(NamedTuple):
    """A hyperparameter: the name, type and default of a field, and its declaration."""

    name: str
    default: Any
    help: str
    source: str
    kind: Any  # type of the value, or of the elements of a tuple
    many: bool  # whether the value is a tuple
    optional: bool  # whether None is valid
    choices: tuple[str, ...]  # valid names; () allows any value
    bounds: Bounds
    needs: tuple[str, ...] = ()  # names of options, at least one of which must be enabled

    def check(self, value: Any) -> None:
        """Validate a value.

        Raises:
          ValueError: If the value is invalid.
        """
        alternative = ", or none" if self.optional else ""
        if value is None:
            if self.optional:
                return
            raise ValueError(f"{self.name} must not be None")
        if self.many and not isinstance(value, tuple):
            raise ValueError(f"{self.name} must be a tuple such as ({value!r},), got {value!r}")
        if self.many and not value:
            valid = f" of {', '.join(self.choices)}" if self.choices else " values"
            raise ValueError(f"{self.name} must not be empty: use one or more{valid}{alternative}")
        singles: tuple[Any, ...] = value if self.many else (value,)
        for single in singles:
            if self.choices:
                check_choice(self.name, single, self.choices, alternative)
            elif self.kind in (int, float):
                self.bounds.check(self.name, single, alternative, self.kind)
                self._check_size(single, alternative)
            else:
                check_kind(self.name, single, self.kind, alternative)

    def _check_size(self, value: float, alternative: str) -> None:
        """Validate that a number without bounds is small enough for int32 or float32 arithmetic."""
        largest = 2**31 - 1 if self.kind is int else 1e6
        low, high = self.bounds.ends()
        if (high is None and largest < value < math.inf) or (
            low is None and -math.inf < value < -largest
        ):
            raise ValueError(
                f"{self.name} is {value}: its magnitude must be at most {largest:,.0f}{alternative}"
            )


@dataclasses.dataclass(frozen=True)
class Config:
    """Base class for configs. A config validates all its options on construction.

    Options may be traced (see `jaxreplay.traced`). Traced options are not validated, and neither
    are combinations of options if one of them is traced.

    Raises:
      ValueError: If an option or a combination of options (see `check`) is invalid.
    """

    def __post_init__(self) -> None:
        for entry in options_of(type(self)):
            value = getattr(self, entry.name)
            if not is_traced(value):
                entry.check(value)
        if not is_traced(self):
            self.check()

    def for_run(self, updates: int) -> Self:
        """Return a copy of the config for a run of `updates` gradient steps.

        Options declared with `whole_run`, such as schedule horizons, are set to `updates` if None.

        Raises:
          ValueError: If `updates` is not a valid value for such an option.
        """
        open_ended = [
            field.name
            for field in dataclasses.fields(self)
            if "declaration" in field.metadata
            and field.metadata["declaration"].whole_run
            and getattr(self, field.name) is None
        ]
        steps = int(updates) if isinstance(updates, np.integer) else updates
        return dataclasses.replace(self, **dict.fromkeys(open_ended, steps))

    def check(self) -> None:
        """Validate combinations of individually valid options. Subclasses may override `check`.

        Raises:
          ValueError: If a combination of options is invalid.
        """


@functools.cache
def options_of(config: type) -> tuple[Option, ...]:
    """Return the options of a config class, in the order of its fields.

    Fields declared without `option` are omitted.
    """
    hints = typing.get_type_hints(config)
    fields = [field for field in dataclasses.fields(config) if "declaration" in field.metadata]
    return tuple(_parse(field, hints[field.name]) for field in fields)


def _parse(field: dataclasses.Field, hint: Any) -> Option:
    arms = typing.get_args(hint)
    optional = type(None) in arms and len(arms) == 2
    if optional:
        (hint,) = (arm for arm in arms if arm is not type(None))
        arms = typing.get_args(hint)
    many = typing.get_origin(hint) is tuple and len(arms) == 2 and arms[1] is Ellipsis
    declared = field.metadata["declaration"]
    kind, choices = arms[0] if many else hint, declared.choices
    if typing.get_origin(kind) is Literal:
        kind, choices = str, typing.get_args(kind)
    bounds = Bounds(
        declared.at_least, declared.above, declared.at_most, declared.below, declared.finite
    )
    return Option(
        field.name, field.default, declared.help, declared.source,
        kind, many, optional, choices, bounds, declared.needs,
    )  # fmt: skip


def check_entry(name: Any, config: Any, make: Any) -> None:
    """Validate a method or agent before registration.

    Args:
      name: name for command lines.
      config: `Config` class of the method or agent.
      make: function that accepts a config and returns the method or agent.

    Raises:
      ValueError: If `name` is not a word of letters, digits and `_.:-`, `make` is not callable, or
        `config` is invalid (see `check_class`).
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.:-]*", name):
        raise ValueError(f"name must be a word of letters, digits and '_.:-', got {name!r}")
    check_class(config)
    if not callable(make):
        raise ValueError(f"'{name}' requires a function that accepts its config, got {make!r}")


def check_class(config: Any) -> None:
    """Validate the config class of a method or agent.

    Raises:
      ValueError: If `config` is not a subclass of `Config`, or an option has no default.
    """
    if not (isinstance(config, type) and issubclass(config, Config)):
        name = getattr(config, "__name__", repr(config))
        raise ValueError(
            f"config must be a dataclass that subclasses jaxreplay.option.Config, got {name}"
        )
    missing = dataclasses.MISSING
    for field in dataclasses.fields(config):
        if field.default is missing and field.default_factory is missing:
            raise ValueError(f"option '{field.name}' of {config.__name__} must have a default")
