"""Help texts: `--help` fits on a page, `--help GROUP` and `--help all` explain every option."""

import argparse
import copy
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WIDTH, LINES = 80, 60  # maximum size of `--help`
_JOINED = "\xa0"  # a space at which textwrap does not break a line


class Guide(NamedTuple):
    """Content of `--help` for a command with many options.

    Attributes:
      headings: options that most users need, such as "--steps", by heading.
      named: descriptions of further groups, whose options are listed with their defaults only.
      examples: complete command lines.
    """

    headings: Mapping[str, Sequence[str]]
    named: Mapping[str, str]
    examples: Sequence[str]


class Group(NamedTuple):
    """A group of options, with a description and with defaults such as "--replay.alpha 0.6"."""

    about: str
    arguments: argparse._ArgumentGroup
    defaults: list[str]

    @property
    def options(self) -> list[argparse.Action]:
        """The options of the group."""
        return self.arguments._group_actions


def formatter(prog: str, position: int = 34) -> argparse.HelpFormatter:
    """Return argparse's formatter with lines of `WIDTH` characters."""
    return argparse.HelpFormatter(prog, max_help_position=position, width=WIDTH)


def short(head: str, groups: Mapping[str, Group], guide: Guide) -> str:
    """Return the options of a guide, in at most `LINES` lines.

    Args:
      head: usage and description.
      groups: all groups of the command, by name.
      guide: content of the help.
    """
    known = {option.option_strings[0]: option for g in groups.values() for option in g.options}
    writer = formatter("", 24)
    for heading, names in guide.headings.items():
        writer.start_section(heading)
        writer.add_arguments([_brief(known[name]) for name in names])
        writer.end_section()
    lines = [*head.rstrip().splitlines(), "", *writer.format_help().rstrip().splitlines()]
    more = f"more: --help GROUP, of {', '.join([*groups, 'all'])}"
    tail = [*_examples(guide.examples), "", *textwrap.wrap(more, WIDTH, subsequent_indent="  ")]
    named = [name for name in guide.named if groups[name].defaults]
    left = LINES - len(lines) - len(tail)
    named = named[: max(left // 3, 0)]  # a blank line, a heading and at least one line each
    for place, name in enumerate(named):
        count = left // (len(named) - place) - 2
        defaults = _defaults(name, groups[name].defaults, count)
        lines += ["", f"{guide.named[name]}:", *defaults]
        left -= 2 + len(defaults)
    return "\n".join([*lines, *tail]) + "\n"


def full(
    head: str, groups: Mapping[str, Group], names: Sequence[str], examples: Sequence[str]
) -> str:
    """Return all options of the named groups, with the sources of their defaults."""
    writer = formatter("")
    for name in names:
        writer.start_section(f"{name} ({groups[name].about})" if groups[name].about else name)
        writer.add_arguments(groups[name].options)
        writer.end_section()
    parts = [textwrap.fill(part, WIDTH) for part in head.strip().split("\n\n")]
    parts += [writer.format_help().strip(), "\n".join(_examples(examples)).strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _brief(option: argparse.Action) -> argparse.Action:
    """Return a copy of an option for short help, without bounds and without a default of none.

    For example, its metavar is "FLOAT" instead of "0<=FLOAT<=1|none".
    """
    brief = copy.copy(option)
    if isinstance(option.metavar, str) and re.search("[<>]", option.metavar):
        brief.metavar = re.sub(r"[^A-Z]|none", "", option.metavar)
    brief.help = (option.help or "").replace(" [default none]", "")
    return brief


def _defaults(group: str, defaults: Sequence[str], count: int) -> list[str]:
    """Return at most `count` lines with the defaults of a group, side by side."""
    words = [text if len(text) <= 60 else f"{text[:57]}..." for text in defaults]
    lines = textwrap.wrap(
        "  ".join(word.replace(" ", _JOINED) for word in words), WIDTH,
        initial_indent="  ", subsequent_indent="  ", max_lines=count, break_on_hyphens=False,
        placeholder=f"  ... (all: --help {group})",
    )  # fmt: skip
    return [line.replace(_JOINED, " ") for line in lines]


def _examples(examples: Sequence[str]) -> list[str]:
    """Return command lines, continued with backslashes between options."""
    lines = ["", "examples:"] if examples else []
    for example in examples:
        text = example.replace(" ", _JOINED).replace(f"{_JOINED}--", " --")
        parts = textwrap.wrap(
            text, WIDTH - 2, initial_indent="  ", subsequent_indent="      ",
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
        lines += " \\\n".join(parts).replace(_JOINED, " ").split("\n")
    return lines
