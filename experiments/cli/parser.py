"""Command-line options from dataclasses, on argparse.

A dataclass is the only place in which a hyperparameter is named, explained and given a default
(see `jaxreplay.option`). Errors are reported in one line.
"""

import argparse
import dataclasses
import difflib
import functools
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from experiments.cli import help as helps
from experiments.cli.help import Group, Guide
from experiments.runs.log import show
from jaxreplay.option import Option, options_of

Instance = TypeVar("Instance")
_MANY = 40  # names; a message with a suggestion does not list more


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """Return an error message for an unknown name, with the most similar name and all names.

    Long lists of names are omitted if a name is similar.
    """
    names = list(names)
    similar = difflib.get_close_matches(name, names, n=1)
    hint = f": did you mean '{similar[0]}'?" if similar else ""
    choices = "" if similar and len(names) > _MANY else f" (choices: {', '.join(names)})"
    return f"unknown {kind} '{name}'{hint}{choices}"


def one_of(kind: str, names: Iterable[str]) -> Callable[[str], str]:
    """Return an argparse `type` that accepts the given names and suggests a similar one."""
    names = list(names)

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(unknown(kind, text, names))
        return text

    return parse


class Ended(SystemExit):
    """Raised after a parser has printed help or an error."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line, with a suggestion and exit code 2.

    Options may be spelled with dashes or underscores, but not abbreviated.

    Attributes:
      reasons: error messages for options that do not exist here, by option.
      groups: groups of options, by name.
      guide: content of `--help`, which then also accepts the name of a group; with None, `--help`
        shows all options.
    """

    def __init__(self, *args: Any, add_help: bool = True, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", helps.formatter)
        super().__init__(*args, add_help=False, allow_abbrev=False, **kwargs)
        self.reasons: dict[str, str] = {}
        self.groups: dict[str, Group] = {}
        self.guide: Guide | None = None
        # argparse before Python 3.14 parses -1e-3 as an option.
        self._negative_number_matcher = re.compile(r"-\.?\d[\d_]*(\.\d*)?([eE][+-]?\d+)?$")
        self._help = _Help(["-h", "--help"], argparse.SUPPRESS, nargs=0, help="show this help")
        if add_help:
            self._add_action(self._help)

    def group(self, name: str, about: str = "") -> argparse._ArgumentGroup:
        """Return the group of options called `name`; add the group if it is new."""
        if name not in self.groups:
            arguments = self.add_argument_group(f"{name}: {about}" if about else name)
            self.groups[name] = Group(about, arguments, [])
        return self.groups[name].arguments

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Parse the known options, after replacing underscores in their names by dashes."""
        args = sys.argv[1:] if args is None else args
        if self.guide is not None:
            self._help.nargs = "?"
        return super().parse_known_args([_dashes(text) for text in args], namespace)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Parse all options, or exit with a suggestion for the first unknown one."""
        namespace, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown_option(rest[0].partition("=")[0]))
        return namespace

    def option(self, name: str) -> argparse.Action:
        """Return the option with a name such as "--n-step"; raise ValueError if it is unknown."""
        if name not in self._option_string_actions:
            raise ValueError(self._unknown_option(name))
        return self._option_string_actions[name]

    def convert(self, option: argparse.Action, texts: Sequence[str]) -> Any:
        """Return an option's value; raise ValueError for invalid, missing or surplus texts."""
        name, many = option.option_strings[0], option.nargs == "+"
        if not texts or (len(texts) > 1 and not many):
            raise ValueError(f"{name} needs {'a' if many else 'one'} value")
        read = _bool if option.nargs == 0 else functools.partial(self._get_value, option)
        try:
            values = [read(text) for text in texts]
        except (argparse.ArgumentError, argparse.ArgumentTypeError) as error:
            raise ValueError(f"{name}: {getattr(error, 'message', error)}") from None
        return values if many else values[0]

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print a message to stderr, if there is one, and exit."""
        if message:
            self._print_message(message, sys.stderr)
        raise Ended(status)

    def error(self, message: str) -> NoReturn:
        """Print one line to stderr and exit with code 2."""
        line = " ".join(message.split()).removeprefix("argument ")
        line = re.sub("expected (at least )?one argument", "needs a value (see --help all)", line)
        self.exit(2, f"error: {line}\n")

    def show_help(self, name: str | None) -> None:
        """Print the guide, one group of options, or all options."""
        if self.guide is None:
            self.print_help()
            return
        usage, about = self.format_usage(), self.description or ""
        if name is None:
            text = helps.short(f"{usage}\n{about.splitlines()[0]}", self.groups, self.guide)
        elif name == "all":
            names, examples = [*self.groups], self.guide.examples
            text = helps.full(f"{usage}\n{about}", self.groups, names, examples)
        elif name in self.groups:
            text = helps.full("", self.groups, [name], ())
        else:
            self.error(f"--help: {unknown('group', name, [*self.groups, 'all'])}")
        self._print_message(text, sys.stdout)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, usage or an error, as argparse calls it."""
        show(message.removesuffix("\n"), file or sys.stderr)

    def _unknown_option(self, name: str) -> str:
        if not name.startswith("-"):
            return f"unexpected argument '{name}': values follow an option (see --help all)"
        if name in self.reasons:
            return self.reasons[name]
        own = {option: _own(option) for option in self._option_string_actions}
        # Groups count only between options of the same name: all options of a group are similar.
        similar = difflib.get_close_matches(_own(name), set(own.values()) - {"help"}, n=1)
        named = [option for option in own if own[option] in similar]
        hint = "".join(difflib.get_close_matches(name, named, n=1, cutoff=0))
        suggestion = f": did you mean '{hint}'?" if hint else ""
        return f"unknown option '{name}'{suggestion} (--help all lists them)"


class _Help(argparse.Action):
    """Print help and exit."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        parser.show_help(values or None)
        parser.exit()


def add_options(
    parser: Parser,
    config: Any,
    prefix: str = "",
    several: Collection[str] = (),
    group: str = "",
    about: str = "",
    without: Collection[str] = (),
) -> None:
    """Add an option for each field of `config` that is declared with `jaxreplay.option.option`.

    Values are written as `3`, `20_000` or `1e6` (int), `0.5` (float), `true` or `false` (bool),
    `256 256` or `256,256` (tuple), and `none` (optional). The help shows the choices, and bounds as
    in `0<=FLOAT<=1`, which `config` checks.

    Args:
      parser: parser to extend.
      config: a dataclass, or an instance of one; the help shows its values as defaults.
      prefix: prefix of every option, as in `--replay.alpha`; empty for top-level options.
      several: fields with a single value for which a list of values is accepted.
      group: name for `--help`; by default the prefix, or "run" without one.
      about: description of the group.
      without: fields that get no option.

    Raises:
      TypeError: the type of a field is not supported.
    """
    name = group or prefix.rstrip(".") or "run"
    arguments = parser.group(name, about)
    for entry in options_of(config if isinstance(config, type) else type(config)):
        if entry.name in without:
            continue
        parse, metavar = _reader(entry)
        option, default = _option(prefix + entry.name), getattr(config, entry.name, entry.default)
        parser.groups[name].defaults.append(f"{option} {_show(default)}")
        arguments.add_argument(
            option, dest=prefix + entry.name, type=parse, default=argparse.SUPPRESS,
            nargs="+" if entry.many or entry.name in several else None,
            metavar=metavar, help=_help(entry, default),
        )  # fmt: skip


def read_options(namespace: argparse.Namespace, instance: Instance, prefix: str = "") -> Instance:
    """Return a copy of `instance` with the values from the command line.

    Raises:
      ValueError: a value or a combination of values is invalid, or an option has no effect without
        another option. The message names the option, or the group for a combination.
    """
    values = vars(namespace)
    entries = [entry for entry in options_of(type(instance)) if prefix + entry.name in values]
    given = {entry.name: _value(entry, values[prefix + entry.name]) for entry in entries}
    try:
        read = dataclasses.replace(instance, **given)  # pyright: ignore
    except ValueError as error:
        for entry in entries:  # errors name the option as on the command line
            try:
                entry.check(given[entry.name])
            except ValueError as own:
                text = str(own).removeprefix(entry.name)
                raise ValueError(f"{_option(prefix + entry.name)}{text}") from None
        raise ValueError(f"{prefix.rstrip('.')}: {error}" if prefix else str(error)) from None
    for entry in entries:
        if entry.needs and not any(getattr(read, name) for name in entry.needs):
            partners = " or ".join(_option(prefix + name) for name in entry.needs)
            option = _option(prefix + entry.name)
            raise ValueError(
                f"{option} has no effect without {partners}: add one, or remove {option}"
            )
    return read


def read_value(entry: Option, text: str) -> Any:
    """Return the value of an option from its text on the command line. Bounds are not checked.

    Raises:
      ArgumentTypeError: the text is not of the option's type.
    """
    return _reader(entry)[0](text)


def _option(name: str) -> str:
    return f"--{name}".replace("_", "-")


def _own(option: str) -> str:
    """Return the name of an option without its dashes and without its group."""
    return option.lstrip("-").rpartition(".")[2]


def _dashes(text: str) -> str:
    name, equals, value = text.partition("=")
    return name.replace("_", "-") + equals + value if text.startswith("--") else text


def _value(entry: Option, value: Any) -> Any:
    """Return the value of a field; argparse reads each word of a tuple as a tuple, or as None."""
    if not entry.many or value == [None]:
        return value[0] if entry.many else value
    return tuple(each for part in value for each in ((None,) if part is None else part))


def _help(entry: Option, default: Any) -> str:
    # The source describes the default of the field, not the value of a preset or a resumed run.
    source = f"; {entry.source}" if entry.source and default == entry.default else ""
    names = f"; of {', '.join(entry.choices)}" if entry.choices and not _choices(entry) else ""
    return f"{entry.help}{names} [default {_show(default)}{source}]".replace("%", "%%")


def _choices(entry: Option) -> str:
    """Return the choices as a metavar, or an empty string if they are too long."""
    names = "{" + ",".join(entry.choices) + "}"
    return names if len(names) < 50 else ""


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_show, value)) or "''"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _reader(entry: Option) -> tuple[Callable[[str], Any], str]:
    """Return the parser of an option's text, and its metavar."""
    if entry.choices:
        parse, metavar = one_of(entry.name, entry.choices), _choices(entry) or "NAME"
    elif entry.kind in _READERS:
        parse, metavar = _READERS[entry.kind], entry.bounds.inequality(entry.kind.__name__.upper())
    else:
        raise TypeError(f"field '{entry.name}': type {entry.kind} has no command-line option")
    if entry.many:
        parse = _tuple(parse)
    return (_optional(parse), f"{metavar}|none") if entry.optional else (parse, metavar)


def _optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.strip().lower() == "none" else parse(text)


def _tuple(parse: Callable[[str], Any]) -> Callable[[str], tuple]:
    return lambda text: tuple(parse(word) for word in text.replace(",", " ").split())


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        value = _float(text)
    if not value.is_integer() or abs(value) > 2**53:  # floats represent integers up to 2^53
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer such as 3, 20_000 or 1e6")
    return int(value)


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number such as 3, 0.5 or 1e-3")
    return value


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"'{text}' is not 'true' or 'false'")
    return text.lower() == "true"


_READERS: dict[Any, Callable[[str], Any]] = {int: _int, float: _float, bool: _bool, str: str}
