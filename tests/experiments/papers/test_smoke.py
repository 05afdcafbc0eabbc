"""Every entry of every paper runs, at its smallest size."""

import pytest

from experiments.papers import __main__ as papers
from experiments.papers import figures, report, tables
from experiments.papers.entry import PAPERS
from experiments.papers.registry import ENTRIES, of_papers


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_entry_runs(paper, tmp_path, capsys):
    assert papers.main(["run", "--paper", paper, "--size", "smoke", "--out", str(tmp_path)]) == 0
    lines = [line.replace(":", " ").split() for line in capsys.readouterr().err.splitlines()]
    # A line is about the entry that it names first; it may point to others.
    named = {next((word for word in line if word in ENTRIES), "") for line in lines}
    for entry in of_papers([paper]):
        if entry.source is None:
            continue
        data = tables.read(tmp_path, entry.source.name, "smoke")
        if data is None:
            assert entry.id in named  # left out
            continue
        assert report.status(entry, "smoke", data) == "done"
        drawn = figures.path_of(entry, "smoke", tmp_path).exists()
        assert drawn == (entry.layout is not None and entry.id not in named)
