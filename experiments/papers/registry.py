"""Registry of experiments, and of all entries by id, with their claims.

`experiments.toml` has the experiments. The files `entries/PAPER.toml` have a table for each entry
with the fields of `Entry`: sources by their names, the name of a file in `printed`, and the name of
the function that draws a layout or computes a statistic next to its options. Table `exact` has the
claims of type `Exact`, with their words. Texts "$NAME" are those of table `texts`, and `like` names
tables to start from, as in presets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments.papers import gains, layouts, sampled
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
from experiments.papers.tables import Data
from experiments.runs.presets import read_tables
from experiments.studies.options import Question

_FOLDER = Path(__file__).parent


def _experiment(name: str, table: Mapping[str, Any]) -> Experiment:
    own = dict(table)
    arms = {label: Arm(**{"replay": label, **arm}) for label, arm in own.pop("arms").items()}
    sizes = {name: Size(**own.pop(name)) for name in ("small", "paper") if name in own}
    question = Question(**own.pop("question", {}))
    return Experiment(name, arms=arms, question=question, **sizes, **own)


EXPERIMENTS: Mapping[str, Experiment] = {
    name: _experiment(name, table)
    for name, table in read_tables(_FOLDER / "experiments.toml").items()
}
_SOURCES: Mapping[str, Source] = {
    **EXPERIMENTS, **{source.name: source for source in COMPUTATIONS}
}  # fmt: skip
_PRINTED = claims()


def _entries(path: Path) -> Iterator[Entry]:
    """Yield the entries in a file."""
    tables = read_tables(path)
    texts = tables.pop("texts", {})

    def said(text: str) -> str:
        return texts[text[1:]] if text.startswith("$") else text

    readers: dict[str, Callable[[Any], Any]] = {
        "source": _SOURCES.__getitem__,
        "published": _SOURCES.__getitem__,
        "layout": _layout,
        "ours": _statistic,
        "reported": printed,
        "lost": said,
        "missing": said,
        "note": lambda note: tuple(map(said, note)),
    }
    for name, table in tables.items():
        id = f"{path.stem}.{name}"
        own = {field: readers.get(field, lambda x: x)(value) for field, value in table.items()}
        exact = [Exact(says, claim) for claim, says in own.pop("exact", {}).items()]
        yield Entry(id, **own, claims=(*exact, *CLAIMS.get(id, ()), *_PRINTED.get(id, ())))


def _layout(table: Mapping[str, Any]) -> Layout:
    options = dict(table)
    draw, where = options.pop("draw"), options.pop("where", {})
    return Layout(getattr(layouts, draw, None) or getattr(sampled, draw), options, where)


def _statistic(table: Mapping[str, Any]) -> Callable[[Data], list[list[str]]]:
    options = dict(table)
    return partial(getattr(gains, options.pop("statistic")), **options)


ENTRIES: Mapping[str, Entry] = {
    entry.id: entry for paper in PAPERS for entry in _entries(_FOLDER / "entries" / f"{paper}.toml")
}


def of_papers(papers: Iterable[str]) -> list[Entry]:
    """Return the entries of papers, given as keys of PAPERS."""
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
