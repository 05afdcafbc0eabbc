"""Registry of all entries by id, with their claims.

The files `entries/PAPER.toml` have a table for each entry with the fields of `Entry`: sources by
their names, the name of a file in `printed`, and the name of the function that draws a layout or
computes a statistic next to its options. Table `exact` has the claims of type `Exact`, with their
words. Texts "$NAME" are those of `_texts`, and layouts that are names are those of `_layouts`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.papers import gains, lap, layouts, ners, per, pser, refer, sampled, tasks
from experiments.papers.entry import PAPERS, Claim, Entry, Exact, Layout, Source
from experiments.papers.printed import claims, printed
from experiments.papers.tables import Data
from experiments.storage.files import read_toml

_SOURCES: Mapping[str, Source] = {
    source.name: source
    for paper in (per, lap, pser, ners, refer, tasks)
    for source in paper.SOURCES
}
_CLAIMS, _PRINTED = {**pser.CLAIMS, **tasks.CLAIMS}, claims()


def _entries(path: Path) -> Iterator[Entry]:
    """Yield the entries in a file."""
    tables = read_toml(path)
    texts, drawn = tables.pop("_texts", {}), tables.pop("_layouts", {})

    def said(text: str) -> str:
        return texts[text[1:]] if text.startswith("$") else text

    readers: dict[str, Callable[[Any], Any]] = {
        "source": _SOURCES.__getitem__,
        "published": _SOURCES.__getitem__,
        "layout": lambda own: _layout(drawn[own] if isinstance(own, str) else own),
        "ours": _statistic,
        "reported": printed,
        "lost": said,
        "missing": said,
        "note": lambda note: tuple(map(said, note)),
    }
    for name, table in tables.items():
        id = f"{path.stem}.{name}"
        own: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
        exact = [Exact(says, claim) for claim, says in own.pop("exact", {}).items()]
        own["claims"] = (*exact, *_CLAIMS.get(id, ()), *_PRINTED.get(id, ()))
        for field, read in readers.items():
            if field in own:
                own[field] = read(own[field])
        yield Entry(id, **own)


def _layout(table: Mapping[str, Any]) -> Layout:
    options = dict(table)
    draw, where = options.pop("draw"), options.pop("where", {})
    return Layout(getattr(layouts, draw, None) or getattr(sampled, draw), options, where)


def _statistic(table: Mapping[str, Any]) -> Callable[[Data], list[list[str]]]:
    options = dict(table)
    return partial(getattr(gains, options.pop("statistic")), **options)


ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {
        entry.id: entry
        for paper in PAPERS
        for entry in _entries(Path(__file__).with_name("entries") / f"{paper}.toml")
    }
)


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
