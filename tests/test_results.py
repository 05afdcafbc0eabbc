"""RESULTS.md says what the committed tables say, and what is committed stays small."""

from pathlib import Path

import pytest

from experiments.papers import report, running, tables
from experiments.papers.registry import ENTRIES, sources

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
PAPERS = RESULTS / "papers"
COMMITTED = [name for name in sources(ENTRIES.values()) if (PAPERS / f"{name}.small.json").exists()]


def test_the_report_is_that_of_the_tables():
    """Mend it with `python -m experiments.papers report --all --write RESULTS.md`."""
    text = report.everything(ENTRIES.values(), "small", PAPERS, ROOT)
    assert (ROOT / "RESULTS.md").read_text() == text


def test_every_figure_of_the_report_is_there():
    text = (ROOT / "RESULTS.md").read_text()
    for entry in ENTRIES.values():
        if f"/{entry.id}.small.png)" in text:
            assert (PAPERS / f"{entry.id}.small.png").exists()
    for entry in ENTRIES.values():
        data = tables.read(PAPERS, entry.source.name, "small") if entry.source else None
        if report.status(entry, "small", data) == "done" and entry.layout is not None:
            assert (PAPERS / f"{entry.id}.small.png").exists(), entry.id


@pytest.mark.parametrize("name", COMMITTED)
def test_tables_hold_what_their_entries_are_made_of(name):
    source = sources(ENTRIES.values())[name]
    data = tables.read(PAPERS, name, "small")
    assert data is not None and running.stale(source, "small", data, other_code=True) == {}
    if data.runs:
        wanted = {env: set(arms) for env, arms in source.runs("small").items()}
        assert all(set(runs) <= wanted[env] for env, runs in data.runs.items())
        config = next(iter(data.runs.values()))
        assert all("config" in made and "versions" in made for made in config.values())


def test_files_are_small():
    sizes = {path: path.stat().st_size for path in PAPERS.iterdir()}
    assert sizes and max(sizes.values()) < 300_000
    assert sum(sizes.values()) < 15_000_000
    assert {path for path in sizes if path.suffix not in (".png", ".json", ".gz", ".csv")} == set()
