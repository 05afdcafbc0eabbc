"""Hyperparameters as dataclass fields that know their meaning, their bounds and their source.

A config is a frozen dataclass below `Config`, each of whose fields is declared by `option`:

    @dataclasses.dataclass(frozen=True)
    class PERConfig(Config):
        alpha: float = option(0.6, "priority exponent", "Schaul et al. 2016, Tab. 3", at_least=0)
        sampling: Literal["stratified", "iid"] = option("stratified", "how a batch is drawn")

What is declared there is checked on construction and shown by command lines; it is not repeated
anywhere. Options that several configs share are a base class of them all.
"""

import copy
import dataclasses
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, ParamSpec, Self, TypeVar

from jaxreplay._internal.checks import Bounds, check_choice, check_kind

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
    """Declare one hyperparameter of a `Config`.

    The field's type says what is allowed: bool, int, float or str, a `Literal` of names, a tuple
    `tuple[T, ...]` of these, which is never empty, and whether None is. Of a tuple, bounds are
    those of every element. NaN is never allowed.

    Args:
      default: its default value.
      help: one line that says what it is, with units.
      source: where the default comes from (paper, table), if from anywhere.
      choices: the names allowed, where they come from a table; a `Literal` says them by itself.
      at_least: the least number allowed.
      above: the same, the bound itself excluded.
      at_most: the largest number allowed; if nothing is said, 2^31 - 1 or a million, by the type.
      below: the same, the bound itself excluded.
      finite: whether infinity is refused.
      needs: other options of the config, one of which must be on for this one to count; command
        lines refuse it without.
      whole_run: None stands for the gradient steps of the run, which `Config.for_run` fills in.
    """
    bounds = Bounds(at_least, above, at_most, below, finite)
    metadata = {"help": help, "source": source, "choices": choices, "bounds": bounds}
    metadata |= {"needs": needs, "whole_run": whole_run}
    return dataclasses.field(default=default, metadata=metadata)


def override(config: type["Config"], name: str, default: Any, source: str = "") -> Any:
    """Declare an option that a base class has, with another default.

    Args:
      config: the base class.
      name: of the option, and of the field that this is assigned to.
      default: its default value here.
      source: where this default comes from, if from anywhere.
    """
    fields = {field.name: field for field in dataclasses.fields(config)}
    metadata = {**fields[name].metadata, "source": source}
    return dataclasses.field(default=default, metadata=metadata)


class Option(NamedTuple):
    """What is declared of one hyperparameter."""

    name: str
    default: Any
    help: str
    source: str
    kind: Any  # type of the value, or of each element of a tuple
    many: bool  # a tuple
    optional: bool  # None is allowed
    choices: tuple[str, ...]  # () allows any value
    bounds: Bounds
    needs: tuple[str, ...] = ()  # options of which one must be on

    def check(self, value: Any) -> None:
        """Refuse a value that is not allowed.

        Raises:
          ValueError: one line that names the option.
        """
        if value is None and self.optional:
            return
        alternative = ", or none" if self.optional else ""
        if value is None:
            raise ValueError(f"{self.name} is none: it needs a value")
        if self.many and not isinstance(value, tuple):
            raise ValueError(f"{self.name} is {value!r}: give a tuple, such as ({value!r},)")
        if self.many and len(value) == 0:
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
        """Refuse numbers that int32 or float32 do not hold in what is computed from them."""
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
    """Base of all configs: refuses, on construction, values that their options do not allow.

    Raises:
      ValueError: one line that names the option.
    """

    def __post_init__(self) -> None:
        for entry in options_of(type(self)):
            entry.check(getattr(self, entry.name))
        self.check()

    def for_run(self, updates: int) -> Self:
        """Return the config for a run of so many gradient steps: open horizons become these.

        Raises:
          ValueError: `updates` is not a whole number from 0 on.
        """
        check_kind("updates", updates, int)
        Bounds(at_least=0).check("updates", updates)
        config = copy.copy(self)
        for field in dataclasses.fields(self):
            if field.metadata.get("whole_run") and getattr(self, field.name) is None:
                # Not by `replace`, which checks every option: a sweep's may be tracers.
                object.__setattr__(config, field.name, int(updates))
        return config

    def check(self) -> None:
        """Refuse values that do not go together; every single one is within its bounds by now.

        Raises:
          ValueError: one line that names the options.
        """


@functools.cache
def options_of(config: type) -> tuple[Option, ...]:
    """Return what is declared of the fields of a dataclass; fields without `option` are left out.

    Bases come before what is declared in the class itself, the last base first.
    """
    hints = typing.get_type_hints(config)
    fields = [field for field in dataclasses.fields(config) if "help" in field.metadata]
    return tuple(_read(field, hints[field.name]) for field in fields)


def _read(field: dataclasses.Field, hint: Any) -> Option:
    kind, optional = _without_none(hint)
    arms = typing.get_args(kind)
    many = typing.get_origin(kind) is tuple and len(arms) == 2 and arms[1] is Ellipsis
    kind = arms[0] if many else kind
    choices = field.metadata["choices"]
    if typing.get_origin(kind) is Literal:
        kind, choices = str, typing.get_args(kind)
    return Option(
        field.name, field.default, field.metadata["help"], field.metadata["source"],
        kind, many, optional, choices, field.metadata["bounds"], field.metadata["needs"],
    )  # fmt: skip


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was part of it."""
    arms = typing.get_args(hint)
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    if not is_union or type(None) not in arms or len(arms) != 2:
        return hint, False
    (kind,) = (arm for arm in arms if arm is not type(None))
    return kind, True


def check_entry(name: Any, config: Any, make: Any) -> None:
    """Refuse what can't be registered as a method or agent from elsewhere.

    Raises:
      ValueError: one line: the name is not a word that a command line may have, `make` can't be
        called, or as `check_class`.
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.:-]*", name):
        raise ValueError(f"name is {name!r}: it must be a word of letters, digits, '_', '.' or '-'")
    check_class(config)
    if not callable(make):
        raise ValueError(f"what is to make '{name}' is {make!r}: give a function of its config")


def check_class(config: Any) -> None:
    """Refuse what can't be the config of a method or agent from elsewhere.

    Raises:
      ValueError: one line: it is no `Config`, or has an option without a default.
    """
    if not (isinstance(config, type) and issubclass(config, Config)):
        name = getattr(config, "__name__", repr(config))
        raise ValueError(f"{name} is no config: make it a dataclass below jaxreplay.option.Config")
    missing = dataclasses.MISSING
    for field in dataclasses.fields(config):
        if field.default is missing and field.default_factory is missing:
            raise ValueError(f"option '{field.name}' of {config.__name__} has no default: give one")


def takes_own_config(make: Callable[P, T]) -> Callable[P, T]:
    """Let a function refuse a `config` that is not of the class of its default.

    Raises:
      ValueError: when it is called, one line that names both classes.
    """
    signature = inspect.signature(make)
    wanted = type(signature.parameters["config"].default)

    @functools.wraps(make)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        given = signature.bind(*args, **kwargs).arguments
        config = given.get("config", signature.parameters["config"].default)
        if not isinstance(config, wanted):
            kind = (
                f"the class {config.__name__}"
                if isinstance(config, type)
                else (f"a {type(config).__name__}")
            )
            raise ValueError(f"config is {kind}: give a {wanted.__name__}(...)")
        return make(*args, **kwargs)

    return checked
