"""Building blocks of a page, for its template: sections of tables, lines, plots and films."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.figures.elements import Key, Panel
from experiments.storage import files

MOST_BYTES = 6_000_000  # limit for all films of a page together


class Table(NamedTuple):
    """A table, whose columns after the first contain numbers or short words."""

    cells: Sequence[Sequence[str]]  # including the header
    caption: str = ""
    folded: bool = False  # whether the table is collapsed on screen

    kind = "table"


class Lines(NamedTuple):
    """A list of lines."""

    lines: Sequence[str]

    kind = "lines"


class Code(NamedTuple):
    """A block of command lines."""

    lines: Sequence[str]

    kind = "code"


class Plots(NamedTuple):
    """Plots that share a legend; keys without a label explain dotted lines."""

    panels: Sequence[Panel]
    legend: Sequence[Key] = ()
    title: str = ""

    kind = "plots"


class Film(NamedTuple):
    """A film of an episode."""

    caption: str
    data: str  # data URI

    kind = "film"


class Section(NamedTuple):
    """A section of a page."""

    name: str  # target of links
    title: str
    intro: str
    blocks: Sequence[Table | Lines | Code | Plots | Film]


def films(paths: Mapping[str, Path]) -> Section | None:
    """Return the section of films, embedded up to `MOST_BYTES` in total."""
    blocks, left_out, total = [], [], 0
    for label, path in paths.items():
        try:
            content = files.read_bytes(path)
        except ValueError as error:
            left_out.append(f"{label}: {error}")
            continue
        if not content.startswith(b"GIF8"):
            left_out.append(f"{label}: {path.name} is not a GIF")
        elif total + len(content) > MOST_BYTES:
            left_out.append(f"{label}: {path.name} has {len(content) / 1e6:.1f} MB")
        else:
            total += len(content)
            data = base64.b64encode(content).decode()
            blocks.append(Film(label, f"data:image/gif;base64,{data}"))
    if not blocks and not left_out:
        return None
    intro = (
        f"Greedy episodes, as experiments.watch recorded them. A page holds at most "
        f"{MOST_BYTES / 1e6:g} MB of films; those left out are in the folders of their runs."
    )
    more = [Lines(left_out)] if left_out else []
    return Section("film", "An episode", intro, [*blocks, *more])
