"""Registry of experiments, and of all entries by id, with their claims.

`experiments.toml` has the experiments. The files `entries/PAPER.toml` have a TOML table for each
entry with the fields of `Entry`. Sources are given by their names, the paper's numbers by the name
of a file in `printed`, and functions that draw a layout or compute a statistic by their names, next
to their options. Table `exact` has claims of type `Exact`: its keys are values of column "claim",
and its values are the claims in words. A text "$NAME" stands for NAME in table `_texts`, and
`like = ["a"]` begins with the fields of table `a`, as in presets.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from experiments.files.disk import read_toml
from experiments.papers import gains, layouts, sampled
from experiments.papers.archive import Data
from experiments.papers.computations import CLAIMS, COMPUTATIONS
from experiments.papers.entry import (
    PAPERS,
    Arm,
    Claim,
    Entry,
    Exact,
    Experiment,
    Layout,
    Size,
    Source,
)
from experiments.papers.printed import claims, printed
from experiments.runs.presets import read_tables
from experiments.studies.options import Question

_FOLDER = Path(__file__).parent


# Functions that draw layouts, and that compute the statistics of a paper's table.
_DRAW: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        layouts.lines, layouts.bars, layouts.forest, layouts.claims, layouts.scores, layouts.sooner,
        layouts.ranked, layouts.settings_grid, sampled.draw_states,
    )
}  # fmt: skip
_STATISTICS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (gains.mean_and_median, gains.until_baseline)
}
_Made = TypeVar("_Made")


def _build(kind: Callable[..., _Made], **values: Any) -> _Made:
    """Return an instance of a dataclass; raise TypeError if a string is given for a tuple."""
    for name, hint in get_type_hints(kind).items():
        if get_origin(hint) is tuple and isinstance(values.get(name), str):
            raise TypeError(f"{name} must be a TOML array, not a string")
    return kind(**values)


def _experiment(name: str, table: Mapping[str, Any]) -> Experiment:
    own = dict(table)
    if "arms" in own:
        own["arms"] = {label: Arm(**{"replay": label, **arm}) for label, arm in own["arms"].items()}
    for size in ("small", "paper"):
        if size in own:
            own[size] = _build(Size, **own[size])
    own["question"] = Question(**own.get("question", {}))
    return _build(Experiment, name=name, **own)


EXPERIMENTS: Mapping[str, Experiment] = read_tables(_FOLDER / "experiments.toml", _experiment)
_SOURCES: Mapping[str, Source] = {
    **EXPERIMENTS, **{source.name: source for source in COMPUTATIONS}
}  # fmt: skip
_PRINTED = claims()


def read_entries(path: Path) -> dict[str, Entry]:
    """Return the entries in a TOML file, by the names of their tables.

    Raises:
      ValueError: a table has an unknown name or a wrong value; the error names file and table.
    """

    @functools.cache
    def texts() -> dict[str, str]:
        return read_toml(path).get("_texts", {})

    def said(text: str) -> str:
        return texts()[text[1:]] if text.startswith("$") else text

    readers: dict[str, Callable[[Any], Any]] = {
        "source": _SOURCES.__getitem__,
        "published": _SOURCES.__getitem__,
        "layout": _layout,
        "ours": _statistic,
        "reported": printed,
        "lost": said,
        "missing": said,
        "note": lambda note: note if isinstance(note, str) else tuple(map(said, note)),
    }

    def entry(name: str, table: dict[str, Any]) -> Entry:
        id = f"{path.stem}.{name}"
        own = {field: readers.get(field, lambda x: x)(value) for field, value in table.items()}
        exact = [Exact(says, claim) for claim, says in own.pop("exact", {}).items()]
        own["claims"] = (*exact, *CLAIMS.get(id, ()), *_PRINTED.get(id, ()))
        return _build(Entry, id=id, **own)

    return read_tables(path, entry)


def _layout(table: Mapping[str, Any]) -> Layout:
    options = dict(table)
    draw, where = _DRAW[options.pop("draw")], options.pop("where", {})
    inspect.signature(draw).bind("plotted", "path", **options)
    return Layout(draw, options, where)


def _statistic(table: Mapping[str, Any]) -> Callable[[Data], list[list[str]]]:
    options = dict(table)
    return functools.partial(_STATISTICS[options.pop("statistic")], **options)


ENTRIES: Mapping[str, Entry] = {
    entry.id: entry
    for paper in PAPERS
    for entry in read_entries(_FOLDER / "entries" / f"{paper}.toml").values()
}


def of_papers(papers: Iterable[str]) -> list[Entry]:
    """Return the entries of `papers`, which are keys of PAPERS."""
    chosen = set(papers)
    return [entry for entry in ENTRIES.values() if entry.paper in chosen]


def claims_about(source: Source) -> dict[str, tuple[Claim, ...]]:
    """Return the claims of all entries with this source, by id of the entry."""
    found = {}
    for entry in ENTRIES.values():
        own = tuple(claim for claim in entry.claims if isinstance(claim, Claim))
        made_of = {each.name for each in (entry.source, entry.published) if each is not None}
        if own and source.name in made_of:
            found[entry.id] = own
    return found
