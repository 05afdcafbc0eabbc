"""Helps that can be read: first what most people need, and the rest by group.

`--help` fits a screen or two, `--help GROUP` explains the options of a group, `--help all` every
option. A parser without a guide has few options, and shows all of them at once.
"""

import argparse
import copy
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WIDTH = 80  # columns
LINES = 60  # at most, of what `--help` alone shows


class Guide(NamedTuple):
    """What `--help` alone shows of a command with many options.

    Attributes:
      headings: the options that most people need, such as "--steps", by headings.
      named: groups of options that are shown with their defaults alone, by what is said of them.
      examples: whole command lines.
    """

    headings: Mapping[str, Sequence[str]]
    named: Mapping[str, str]
    examples: Sequence[str]


class Group(NamedTuple):
    """Options that belong together."""

    about: str
    options: list[argparse.Action]
    defaults: list[str]  # "--replay.alpha 0.6", of those that have one


def formatter(prog: str, position: int = 34) -> argparse.HelpFormatter:
    """Return argparse's formatter, as wide as we want it."""
    return argparse.HelpFormatter(prog, max_help_position=position, width=WIDTH)


def short(
    head: str, groups: Mapping[str, Group], guide: Guide, prog: str, choices: Sequence[str]
) -> str:
    """Return what most people need, in at most `LINES` lines.

    Args:
      head: usage and description.
      groups: all groups of the command by name.
      guide: what to show.
      prog: the command.
      choices: what `--help` takes.
    """
    known = {
        name: option
        for group in groups.values()
        for option in group.options
        for name in option.option_strings
    }
    writer = formatter(prog, 24)
    for heading, names in guide.headings.items():
        writer.start_section(heading)
        writer.add_arguments([_brief(known[name]) for name in names])
        writer.end_section()
    shown = writer.format_help().rstrip().splitlines()
    tail = _examples(guide.examples) + ["", f"more: --help GROUP, of {', '.join(choices)}"]
    tail[-1:] = _wrapped(tail[-1].split(), " ", "", "  ")
    begin = [*head.rstrip().splitlines(), "", *shown]
    left = LINES - len(begin) - len(tail)
    named = [
        (text, groups[name].defaults) for name, text in guide.named.items() if groups[name].defaults
    ]
    named = named[: max(left // 3, 0)]  # each takes a blank line, a heading, and a line at least
    middle = []
    for place, (text, defaults) in enumerate(named):
        lines = _at_most(left // (len(named) - place) - 2, defaults)
        left -= 2 + len(lines)
        middle += ["", f"{text}:", *lines]
    return "\n".join([*begin, *middle, *tail]) + "\n"


def full(
    head: str, groups: Mapping[str, Group], names: Sequence[str], prog: str, examples: Sequence[str]
) -> str:
    """Return whole groups of options, with their sources."""
    writer = formatter(prog)
    for name in names:
        writer.start_section(f"{name} ({groups[name].about})" if groups[name].about else name)
        writer.add_arguments(groups[name].options)
        writer.end_section()
    head = "\n\n".join(textwrap.fill(part, WIDTH) for part in head.split("\n\n"))
    tail = "\n".join(_examples(examples))
    return f"{head.rstrip()}\n\n{writer.format_help().rstrip()}\n{tail}".strip() + "\n"


def _brief(option: argparse.Action) -> argparse.Action:
    """Return an option as it is shown among few: without bounds, or the default of being left out.

    Its values' kind is the word in "0<=FLOAT<=1|none".
    """
    brief = copy.copy(option)
    if isinstance(option.metavar, str) and re.search("[<>]", option.metavar):
        brief.metavar = re.sub(r"[^A-Z]|none", "", option.metavar)
    brief.help = (option.help or "").replace(" [default none]", "")
    return brief


def _examples(examples: Sequence[str]) -> list[str]:
    """Return examples as lines, each continued as a shell continues it."""
    if not examples:
        return []
    lines = ["", "examples:"]
    for example in examples:
        words = re.split(r" (?=--)", example)  # an option and its value stay together
        parts = _wrapped(words, " ", "  ", "      ", WIDTH - 2)
        lines += [f"{part} \\" for part in parts[:-1]] + parts[-1:]
    return lines


def _at_most(lines: int, defaults: Sequence[str]) -> list[str]:
    """Return options with their defaults side by side; say how many do not fit."""
    cut = [text if len(text) <= 60 else f"{text[:57]}..." for text in defaults]
    found = _wrapped(cut, "  ", "  ", "  ")
    if len(found) <= lines:
        return found
    for number in range(len(cut) - 1, -1, -1):
        found = _wrapped([*cut[:number], f"and {len(cut) - number} more"], "  ", "  ", "  ")
        if len(found) <= lines:
            break
    return found


def _wrapped(
    words: Sequence[str], between: str, first: str, then: str, width: int = WIDTH
) -> list[str]:
    """Return words in lines; none is broken."""
    lines, line = [], first + (words[0] if words else "")
    for word in words[1:]:
        if len(line) + len(between) + len(word) > width:
            lines.append(line)
            line = then + word
        else:
            line += between + word
    return [*lines, line]
