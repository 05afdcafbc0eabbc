"""The Python that pages show runs, each page in one namespace, with fewer steps and slots."""

import pytest

from tests import documents
from tests.documents import PAGES, README, ROOT

BEGINNINGS = ("index.md", "start.md")  # they show what the README does
WITH_PYTHON = sorted(
    name
    for name, path in PAGES.items()
    if name not in BEGINNINGS and any(not block.slow for block in documents.python(path))
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


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_all_of_it_runs(name, elsewhere):
    names: dict = {"__name__": "page"}
    for block in documents.python(PAGES[name]):
        documents.run(block.text, names)


def test_pages_that_begin_begin_as_the_readme():
    shown = {block.text for block in documents.python(README)}  # `test_readme` runs these
    for name in BEGINNINGS:
        assert {block.text for block in documents.python(PAGES[name])} <= shown
