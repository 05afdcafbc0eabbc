"""The Python that pages show runs, each page in one namespace, with fewer steps and slots."""

from pathlib import Path

import numpy as np
import pytest

from tests import documents
from tests.documents import PAGES, README, ROOT

ROWS = "how_to/rows_and_files.md"  # has a test of its own
START = "start.md"  # has a test of its own, too
BEGINNING = "index.md"  # shows what the README does
WITH_PYTHON = sorted(
    name
    for name, path in PAGES.items()
    if name not in (BEGINNING, START, ROWS)
    and any(not block.slow for block in documents.python(path))
)
SLOW = sorted(
    name for name, path in PAGES.items() if any(block.slow for block in documents.python(path))
)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in a folder of one's own, from where the committed results are seen."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "results").symlink_to(ROOT / "experiments" / "results")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_it_runs(name, elsewhere):
    names: dict = {"__name__": "page"}
    for block in documents.python(PAGES[name]):
        if not block.slow:
            documents.run(block.text, names)


def test_an_agent_takes_fourteen_lines(elsewhere, capsys):
    (block,) = documents.python(PAGES[START])
    assert len([line for line in block.text.splitlines() if line]) == 14 and "50_000" in block.text
    names: dict = {"__name__": "page"}
    documents.run(block.text.replace("50_000", "1_200"), names)  # of which 1000 are the warm-up
    assert names["metrics"]["eval_return"].shape == (5, 1)
    assert "1200" in capsys.readouterr().out


def test_rows_and_files_are_what_the_page_says(elsewhere, capsys):
    names: dict = {"__name__": "page"}
    for block in documents.python(PAGES[ROWS]):
        documents.run(block.text, names)
    assert names["losses"].shape == (100,) and np.isfinite(names["losses"]).all()
    assert names["large"].transition["obs"].shape == (256, 3)
    assert names["rows"].shape == (4096, 3) and names["words"].any()
    assert names["batch"].transition["obs"].shape == (16, 12, 3)
    assert not names["counts"][:, :4].any() and names["counts"][:, 4:].any(axis=1).all()
    assert Path("replay.safetensors").exists()
    assert capsys.readouterr().out == "15 0\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_all_of_it_runs(name, elsewhere):
    names: dict = {"__name__": "page"}
    for block in documents.python(PAGES[name]):
        documents.run(block.text, names)


def test_the_first_page_begins_as_the_readme():
    shown = [block.text for block in documents.python(README)]  # `test_readme` runs these
    assert [block.text for block in documents.python(PAGES[BEGINNING])] == shown
