"""Every notebook runs from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))

# What readers run for a minute, tests run just long enough for every cell: old, new text.
SHORTER = {
    "01_quickstart": {"steps=20_000, eval_every=1_000": "steps=2_000, eval_every=500"},
    "03_blind_cliffwalk": {"sizes = (3, 5, 7)": "sizes = (3, 7)"},
    "05_inside_ners": {
        "steps=5_000, warmup=1_000": "steps=1_500, warmup=500",
        '"per": per.method(per.PERConfig(), updates),': "",  # as the others, in 01 and 02
    },
    "06_inside_refer": {"steps=16_000": "steps=3_000", "length=2000": "length=200"},
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    notebook = nbformat.read(path, as_version=4)
    kept = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert kept, "commit notebooks with their outputs: make notebooks"
    assert path.stat().st_size < 300_000, "keep outputs small"
    shorten(notebook, SHORTER.get(path.stem, {}))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": path.parent}}).execute()


def shorten(notebook, changes: dict[str, str]) -> None:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for long, short in changes.items():
        assert any(long in cell.source for cell in cells), f"no cell says {long}"
        for cell in cells:
            cell.source = cell.source.replace(long, short)
