"""What a page consists of, for its template: sections of tables, lines, plots, films and code."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A table; all columns but the first are numbers or short words."""

    cells: Sequence[Sequence[str]]  # the header first
    caption: str = ""
    folded: bool = False  # shown on demand, and in print

    kind = "table"


class Lines(NamedTuple):
    """A list of lines."""

    lines: Sequence[str]

    kind = "lines"


class Code(NamedTuple):
    """Command lines, one below the other."""

    lines: Sequence[str]

    kind = "code"


class Plot(NamedTuple):
    """A plot."""

    title: str
    data: list[dict[str, Any]]  # traces of plotly; "meta" is the arm that a trace shows
    layout: dict[str, Any]
    height: int = 240  # pixels
    wide: bool = False  # as wide as the page


class Key(NamedTuple):
    """A line of a legend."""

    arm: str
    colour: str
    dashes: str  # as SVG has them
    width: float


class Plots(NamedTuple):
    """Plots that share a legend."""

    plots: Sequence[Plot]
    legend: Sequence[Key] = ()
    title: str = ""
    note: str = ""

    kind = "plots"


class Film(NamedTuple):
    """A film of an episode."""

    caption: str
    data: str  # a data URI

    kind = "film"


class Section(NamedTuple):
    """A section of a page."""

    name: str  # for links
    title: str
    intro: str
    blocks: Sequence[Table | Lines | Code | Plots | Film]
