"""Python blocks of pages run, with one namespace per page and with fewer steps and slots."""

from pathlib import Path

import pytest

from tests import documents
from tests.documents import PAGES, ROOT

ROWS = "how_to/rows_and_files.md"  # has a separate test
START = "start.md"  # has a separate test
WITH_PYTHON = sorted(
    name
    for name, path in PAGES.items()
    if name not in (START, ROWS) and any(not block.slow for block in documents.python(path))
)
SLOW = sorted(
    name for name, path in PAGES.items() if any(block.slow for block in documents.python(path))
)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in a temporary folder with a link to the committed results."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "results").symlink_to(ROOT / "experiments" / "results")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_of_pages_runs(name, elsewhere):
    names: dict = {"__name__": "page"}
    for block in documents.python(PAGES[name]):
        if not block.slow:
            documents.run(block.text, names)


def test_start_page_trains_an_agent_in_fourteen_lines(elsewhere, capsys):
    (block,) = documents.python(PAGES[START])
    assert len([line for line in block.text.splitlines() if line]) == 14 and "50_000" in block.text
    names: dict = {"__name__": "page"}
    documents.run(block.text.replace("50_000", "1_200"), names)  # including 1000 of warm-up
    assert names["metrics"]["eval_return"].shape == (5, 1)
    assert "1200" in capsys.readouterr().out


def test_page_on_rows_and_files_has_the_stated_results(elsewhere, capsys):
    names: dict = {"__name__": "page"}
    for block in documents.python(PAGES[ROWS]):
        documents.run(block.text, names)
    assert names["large"].transition["obs"].shape == (256, 3)
    assert names["batch"].transition["obs"].shape == (16, 12, 3)
    assert not names["counts"][:, :4].any() and names["counts"][:, 4:].any(axis=1).all()
    assert Path("replay.safetensors").exists()
    assert capsys.readouterr().out == "15 0\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_python_of_pages_runs_with_slow_blocks(name, elsewhere):
    names: dict = {"__name__": "page"}
    for block in documents.python(PAGES[name]):
        documents.run(block.text, names)
