"""Every notebook runs from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch):
    # Notebooks train for a while: compile them as their readers do (see conftest.py).
    monkeypatch.delenv("XLA_FLAGS")
    notebook = nbformat.read(path, as_version=4)
    kept = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert kept, "commit notebooks with their outputs: make notebooks"
    assert path.stat().st_size < 300_000, "keep outputs small"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": path.parent}}).execute()
