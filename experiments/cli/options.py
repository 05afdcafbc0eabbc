"""Command-line options from dataclasses, on argparse.

A dataclass is the only place where a hyperparameter is named, explained and given a default.
argparse is enough for this, and lets every error be reported in one line.
"""

import argparse
import contextlib
import dataclasses
import difflib
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from experiments.cli import help as helps
from experiments.cli.help import Group, Guide
from experiments.cli.spelling import nearest
from jaxreplay.option import Option, options_of
from jaxreplay.saving import printable

Instance = TypeVar("Instance")
_MANY = 40  # names, more than a reader looks through in a message


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """Return a one-line message for a name that is none of `names`, with the nearest match.

    All of them are listed unless they are many and one is near.
    """
    names = list(names)
    near = _near(name, names)
    choices = "" if near and len(names) > _MANY else f" (choices: {', '.join(names)})"
    return f"unknown {kind} '{name}'{near}{choices}"


def _near(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f": did you mean '{near[0]}'?" if near else ""


def one_of(kind: str, names: Iterable[str]) -> Callable[[str], str]:
    """Return an argparse `type` that accepts one of `names`, or else names the nearest match."""
    names = list(names)

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(unknown(kind, text, names))
        return text

    return parse


class Ended(SystemExit):
    """A parser has said all there is to say."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line, with the nearest match and exit code 2.

    Options are declared with dashes; underscores are accepted too, abbreviations are not.

    Attributes:
      reasons: options that do not exist here, and why.
      elsewhere: options that exist with other names of agents or methods, and what to do.
      groups: options by the names that `--help` takes.
      guide: what `--help` alone shows; None: everything, as argparse does.
    """

    def __init__(self, *args: Any, add_help: bool = True, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", helps.formatter)
        self.reasons: dict[str, str] = {}
        self.elsewhere: dict[str, str] = {}
        self.groups: dict[str, Group] = {}
        self.guide: Guide | None = None
        self._help: argparse.Action | None = None
        self._by_name: dict[str, argparse._ArgumentGroup] = {}
        super().__init__(*args, add_help=False, allow_abbrev=False, **kwargs)
        # argparse before Python 3.14 takes -1e-3 for an option.
        self._negative_number_matcher = re.compile(r"-\.?\d[\d_]*(\.\d*)?([eE][+-]?\d+)?$")
        if add_help:
            self._help = self.add_argument(
                "-h", "--help", action=_Help, nargs="?", metavar="GROUP", help="show this help"
            )

    def group(self, name: str, about: str = "") -> argparse._ArgumentGroup:
        """Return a group of options, made if it is new."""
        if name not in self.groups:
            made = self.add_argument_group(f"{name}: {about}" if about else name)
            self.groups[name] = Group(about, made._group_actions, [])
            self._by_name[name] = made
        return self._by_name[name]

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Parse the known options, after spelling their names with dashes."""
        args = sys.argv[1:] if args is None else args
        return super().parse_known_args([_dashes(text) for text in args], namespace)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Parse all options, or exit with the nearest match for the first unknown one."""
        namespace, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(self._about_unknown(rest[0].partition("=")[0]))
        return namespace

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print a message to stderr, if there is one, and end."""
        if message:
            self._print_message(message, sys.stderr)
        raise Ended(status)

    def error(self, message: str) -> NoReturn:
        """Print one line to stderr and exit with code 2."""
        line = " ".join(message.split()).removeprefix("argument ")
        for missing in ("expected one argument", "expected at least one argument"):
            line = line.replace(missing, "needs a value after it (--help all shows which)")
        self.exit(2, f"error: {printable(line)}\n")

    def format_usage(self) -> str:
        """Return the usage, in which help without groups takes none."""
        with self._as_it_helps():
            return super().format_usage()

    def format_help(self) -> str:
        """Return the whole help, as the usage."""
        with self._as_it_helps():
            return super().format_help()

    @contextlib.contextmanager
    def _as_it_helps(self) -> Iterator[None]:
        """Show `-h` alone where there are no groups; `--help all` is understood in any case."""
        if self._help is None:
            yield
            return
        before, self._help.nargs = self._help.nargs, "?" if self.guide is not None else 0
        try:
            yield
        finally:
            self._help.nargs = before

    def show_help(self, what: str | None) -> None:
        """Print what most people need, one group of options, or all of them."""
        choices = [*self.groups, "all"] if self.guide is not None else ["all"]
        if what is not None and what not in choices:
            self.error(f"--help shows one group, or all: {unknown('group', what, choices)}")
        if self.guide is None:
            self.print_help()
            return
        usage, about = self.format_usage(), self.description or ""
        if what is None:
            head = f"{usage}\n{about.splitlines()[0]}"
            text = helps.short(head, self.groups, self.guide, self.prog, choices)
        elif what == "all":
            head = f"{usage}\n{about}"
            text = helps.full(head, self.groups, [*self.groups], self.prog, self.guide.examples)
        else:
            text = helps.full("", self.groups, [what], self.prog, ())
        self._print_message(text, sys.stdout)

    def _about_unknown(self, name: str) -> str:
        if not name.startswith("-"):
            return (
                f"unexpected argument '{name}': every value follows an option (--help all lists "
                "them)"
            )
        if name in self.reasons:
            return self.reasons[name]
        known = self._option_string_actions
        names = [text for text in known if text.startswith("--") and text != "--help"]
        near = nearest(name, [*names, *self.elsewhere])
        if near is not None and near not in names:
            return f"unknown option '{name}': {self.elsewhere[near]}"
        hint = f": did you mean '{near}'?" if near else ""
        return f"unknown option '{name}'{hint} (--help all lists them)"


class _Help(argparse.Action):
    """Show help, and end."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        parser.show_help(values)
        parser.exit()


def add_options(
    parser: Parser,
    config: Any,
    prefix: str = "",
    several: Collection[str] = (),
    group: str = "",
    about: str = "",
) -> None:
    """Add one option per field of `config` that is declared with `jaxreplay.option.option`.

    Values are written as `3`, `20_000` or `1e6` (int), `0.5` (float), `true` or `false` (bool;
    there is no bare or `--no-` form), `256 256` or `256,256` (tuple), `none` (optional). The help
    shows the names to choose from, and bounds as in `0<=FLOAT<=1`; they are for `config` to check.

    Args:
      parser: gets the options.
      config: dataclass, or an instance whose values are then the defaults shown.
      prefix: put before every option, as in `--replay.alpha`; empty for top-level options.
      several: fields of single values that may be given more than one, and are read as lists.
      group: what `--help` calls them; empty: the prefix, or "run".
      about: what it says of the group.

    Raises:
      TypeError: if a field has a type that no option can be written for.
    """
    name = group or prefix.rstrip(".") or "run"
    options = parser.group(name, about)
    for entry in options_of(config if isinstance(config, type) else type(config)):
        parse, metavar = _reader(entry)
        option = _spelt(prefix + entry.name)
        default = getattr(config, entry.name, entry.default)
        parser.groups[name].defaults.append(f"{option} {_show(default)}")
        options.add_argument(
            option,
            dest=prefix + entry.name,
            type=str if entry.many else parse,
            action=_join(parse) if entry.many else "store",
            nargs="+" if entry.many or entry.name in several else None,
            default=argparse.SUPPRESS,
            metavar=metavar,
            help=_help(entry, default),
        )


def read_options(namespace: argparse.Namespace, instance: Instance, prefix: str = "") -> Instance:
    """Return `instance` with the values that were given on the command line.

    Raises:
      ValueError: the instance's class does not allow a value, or one was given that does nothing;
        the message names the option, or where several do not go together, the group that they are
        of.
    """
    values = vars(namespace)
    own = [entry for entry in options_of(type(instance)) if prefix + entry.name in values]
    given = {entry.name: values[prefix + entry.name] for entry in own}
    try:
        read = dataclasses.replace(instance, **given)
    except ValueError as error:
        for entry in own:
            _check(entry, given[entry.name], prefix)
        raise ValueError(f"{prefix.rstrip('.')}: {error}" if prefix else str(error)) from None
    for entry in own:
        if entry.needs and not any(getattr(read, name) for name in entry.needs):
            partners = " or ".join(_spelt(prefix + name) for name in entry.needs)
            said = f"{_spelt(prefix + entry.name)} does nothing without {partners}"
            raise ValueError(f"{said}: add that, or leave it out")
    return read


def _spelt(name: str) -> str:
    """Return an option as it is written on the command line."""
    return f"--{name}".replace("_", "-")


def _check(entry: Option, value: Any, prefix: str) -> None:
    """Refuse a value that an option does not allow, by the name that it has on the command line."""
    option = _spelt(prefix + entry.name)
    try:
        entry.check(value)
    except ValueError as error:
        said = str(error)
        begins = said.startswith(f"{entry.name} ")
        told = f"{option}{said.removeprefix(entry.name)}" if begins else f"{option}: {said}"
        raise ValueError(told) from None


def read_value(entry: Option, text: str) -> Any:
    """Read one value of an option, as it is written on the command line; bounds aside.

    Raises:
      ArgumentTypeError: it is none.
    """
    return _reader(entry)[0](text)


def _help(entry: Option, default: Any) -> str:
    # The source is that of the field's own default, not of a preset's or a resumed run's value.
    source = f"; {entry.source}" if entry.source and default == entry.default else ""
    names = f"; of {', '.join(entry.choices)}" if entry.choices and not _names(entry) else ""
    return f"{entry.help}{names} [default {_show(default)}{source}]".replace("%", "%%")


def _names(entry: Option) -> str:
    """Return the names that a value is chosen from, as a metavar; "": they take too much room."""
    names = "{" + ",".join(entry.choices) + "}"
    return names if len(names) < 50 else ""


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_show, value)) or "''"
    return {True: "true", False: "false", None: "none"}[value] if _is_word(value) else str(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _reader(entry: Option) -> tuple[Callable[[str], Any], str]:
    """Return a function of an option's text, and its metavar."""
    if entry.choices:
        parse, metavar = one_of(entry.name, entry.choices), _names(entry) or "NAME"
    elif entry.kind in _READERS:
        parse, metavar = _READERS[entry.kind], entry.bounds.inequality(entry.kind.__name__.upper())
    else:
        raise TypeError(f"field '{entry.name}': no option can be written for type {entry.kind}")
    if entry.many:
        parse = _tuple(parse)
    return (_optional(parse), f"{metavar}|none") if entry.optional else (parse, metavar)


def _join(parse: Callable[[str], Any]) -> type[argparse.Action]:
    """Return an action that reads the words after an option as one text."""

    class Join(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
            try:
                setattr(namespace, self.dest, parse(" ".join(values)))
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentError(self, str(error)) from None

    return Join


def _optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.strip().lower() == "none" else parse(text)


def _tuple(parse: Callable[[str], Any]) -> Callable[[str], tuple]:
    return lambda text: tuple(parse(word) for word in text.replace(",", " ").split())


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    value = _float(text, "a whole number, such as 3, 20_000 or 1e6")
    # Beyond 2^53, floats no longer represent every whole number.
    if not value.is_integer() or abs(value) > 2**53:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, such as 20_000 or 1e6")
    return int(value)


def _float(text: str, wanted: str = "a number, such as 0.5 or 1e-3") -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not {wanted}")
    return value


def _bool(text: str) -> bool:
    values = {"true": True, "false": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"'{text}' is not 'true' or 'false'")
    return values[text.lower()]


_READERS: dict[Any, Callable[[str], Any]] = {int: _int, float: _float, bool: _bool, str: str}


def _dashes(text: str) -> str:
    if not text.startswith("--"):
        return text
    name, equals, value = text.partition("=")
    return name.replace("_", "-") + equals + value
