"""Every notebook runs from top to bottom, here: what one compiles is kept for the next."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))

# What readers run for a minute, tests run just long enough for every cell: old, new text.
SHORTER = {
    "01_quickstart": {"steps=20_000, eval_every=1_000": "steps=2_000, eval_every=500"},
    "03_blind_cliffwalk": {"sizes = (3, 5, 7)": "sizes = (7,)"},
    "05_inside_ners": {
        "steps=5_000, warmup=1_000, eval_every=500": "steps=1_000, warmup=500, eval_every=250",
        '"uniform": uniform.method(),': "",  # as the others, in 01 and 02
        '"per": per.method(per.PERConfig(), updates),': "",
    },
    "06_inside_refer": {
        "steps=16_000": "steps=3_000",
        "batch_size=256": "batch_size=32",
        "length=2000": "length=200",
        # one program in place of two
        "without = run(": "without = with_refer or run(",
    },
}


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells), (
        "commit notebooks with their outputs: make notebooks"
    )
    assert path.stat().st_size < 300_000, "keep outputs small"
    shorten(cells, SHORTER.get(path.stem, {}))
    monkeypatch.chdir(path.parent)
    plt.switch_backend("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for number, cell in enumerate(cells):
            exec(compile(cell.source, f"{path.name}, cell {number}", "exec"), names)
    finally:
        plt.close("all")


def shorten(cells: list[Any], changes: dict[str, str]) -> None:
    for long, short in changes.items():
        assert any(long in cell.source for cell in cells), f"no cell says {long}"
        for cell in cells:
            cell.source = cell.source.replace(long, short)
