"""Registry of all entries by id, with their claims."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from experiments.papers import lap, ners, per, pser, refer, tasks
from experiments.papers.entry import Claim, Entry, Source
from experiments.papers.printed import claims

_CLAIMS = claims()
ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {
        entry.id: replace(entry, claims=(*entry.claims, *_CLAIMS.get(entry.id, ())))
        for paper in (per, lap, pser, ners, refer, tasks)
        for entry in paper.ENTRIES
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
