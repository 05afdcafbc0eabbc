"""Every notebook runs, and its outputs are up to date with its code and the results."""

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from IPython.lib.pretty import pretty

from notebooks import execute
from tests.refusals import assert_names

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))

# These take seconds each, and only the slow tests execute them. Quick tests cover the functions
# that they call: tests of training (01, 05, 06), samplers (02), papers (03, 07) and the microscope
# (15), and other notebooks (08, 10).
SLOW = ("01", "02", "03", "05", "06", "07", "08", "10", "15")

# Replacements, old and new text, that shorten runs to the minimum that every cell needs.
SHORTER = {
    "01_quickstart": {"steps=20_000, eval_every=1_000": "steps=2_000, eval_every=500"},
    "03_blind_cliffwalk": {"sizes = (3, 5, 7)": "sizes = (7,)"},
    "05_inside_ners": {
        "steps=5_000, warmup=1_000, eval_every=500": "steps=1_000, warmup=500, eval_every=250",
        '"uniform": uniform.method(),': "",  # same code as the others, in 01 and 02
        '"per": per.method(per.PERConfig().for_run(updates)),': "",
    },
    "06_inside_refer": {
        "steps=16_000": "steps=3_000",
        "batch_size=256": "batch_size=32",
        "length=2000": "length=200",
        # one program instead of two
        "without = run(": "without = with_refer or run(",
    },
    "14_colab": {"%pip install -q": "pass  #", "1_000, 64": "100, 4"},
    "15_a_replay_under_the_microscope": {
        "seeds = 5": "seeds = 2",  # one of them is shown
        "eval_every=3_000": "eval_every=1_200",
        "eval_every=7_000": "eval_every=1_100",
    },
}

NUMBER = re.compile(r"-?(?:\d+(?:,\d{3})*(?:\.\d*)?(?:e[-+]?\d+)?|\b(?:nan|inf)\b)")
AS_IN_A_KERNEL = (
    "display.max_columns", 20, "display.width", 80, "display.max_colwidth", 50,
    "display.max_rows", 60,
)  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_of_the_same_code_and_results(path):
    notebook = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 200_000, "keep outputs small"
    read = [execute.COMMITTED / name for name in notebook.metadata[execute.RECORD]["results"]]
    results = execute.digests({path for path in read if path.exists()})
    assert_new(path, execute.code_changed(notebook) + execute.results_changed(notebook, results))


def test_imports_of_slow_notebooks_exist():
    for path in (path for path in NOTEBOOKS if path.stem[:2] in SLOW):
        for cell in execute.code_cells(nbformat.read(path, as_version=4)):
            nodes = ast.parse(cell.source).body
            imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), path.stem, "exec"), {})


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem[:2] in SLOW else ())
    for path in NOTEBOOKS
])  # fmt: skip
def test_notebook_runs_and_its_outputs_are_up_to_date(path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    cells = execute.code_cells(notebook)
    committed = [text_of(cell.outputs) for cell in cells]
    shorten(cells, SHORTER.get(path.stem, {}))
    monkeypatch.chdir(path.parent)
    plt.switch_backend("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        with execute.reading() as read, pd.option_context(*AS_IN_A_KERNEL), plt.rc_context():
            today = [
                run(cell.source, f"{path.name}, cell {i}", names) for i, cell in enumerate(cells)
            ]
    finally:
        plt.close("all")
    # Shortened computations have other numbers: compare only words.
    compare = same if read else same_words
    changed = [
        f"what its code cell {number} says"
        for number, (before, now) in enumerate(zip(committed, today, strict=True), start=1)
        if not compare(before, now)
    ]
    assert_new(path, execute.results_changed(notebook, execute.digests(read)) + changed)


def assert_new(path: Path, changed: list[str]) -> None:
    """Assert that nothing has changed since a notebook's outputs were made."""
    rest = f" and {len(changed) - 6} more" if len(changed) > 6 else ""
    assert not changed, (
        f"{path.stem}: its outputs are older than {', '.join(changed[:6])}{rest}. "
        f"Execute it again: make notebooks ONLY={path.stem[:2]} (without ONLY: all of them)"
    )


def shorten(cells: list[Any], changes: dict[str, str]) -> None:
    for long, short in changes.items():
        assert any(long in cell.source for cell in cells), f"no cell says {long}"
        for cell in cells:
            cell.source = cell.source.replace(long, short)


def run(source: str, name: str, names: dict[str, Any]) -> str:
    """Execute a cell, and return its printed text and its last value as Jupyter shows it."""
    body = ast.parse(source, name).body
    shown = body and isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";")
    last = body.pop() if shown else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), name, "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
        return printed.getvalue() + ("" if value is None else pretty(value))


def text_of(outputs: list[Any]) -> str:
    """Return the text of a cell's outputs, without figures."""
    return "".join(
        output.text if output.output_type == "stream" else output.data["text/plain"]
        for output in outputs
        if output.output_type == "execute_result" or output.get("name") == "stdout"
    )


def words(text: str) -> str:
    """Return a text without numbers, and without spaces, which depend on the numbers."""
    return re.sub(r"[\s\\]", "", NUMBER.sub("", text))


def same_words(before: str, now: str) -> bool:
    return words(before) == words(now)


def same(before: str, now: str) -> bool:
    """Return whether words are equal and numbers agree up to rounding."""
    a, b = (
        [float(number.replace(",", "")) for number in NUMBER.findall(text)]
        for text in (before, now)
    )
    return same_words(before, now) and len(a) == len(b) and np.allclose(a, b, 2e-3, equal_nan=True)


def test_changed_results_and_code_are_named(tmp_path, monkeypatch):
    notebook = nbformat.read(execute.FOLDER / "13_a_sweep_taken_apart.ipynb", as_version=4)
    results = notebook.metadata[execute.RECORD]["results"]
    assert execute.results_changed(notebook, results) == []
    first, *others = results
    assert execute.results_changed(notebook, {**results, first: "other"}) == [first]
    assert execute.results_changed(notebook, {name: results[name] for name in others}) == [first]
    assert execute.results_changed(notebook, {**results, "new": "table"}) == ["new"]
    assert execute.code_changed(notebook) == []
    execute.code_cells(notebook)[0].source += "\n"
    assert len(execute.code_changed(notebook)) == 1
    assert same("15 of 17, 0.5", "15 of 17, 0.5000001") and not same("15 of 17", "17 of 17")
    assert same_words("mean 4.07 of [1. nan]", "mean 3 of [2.]") and not same_words("a 1", "b 1")


def test_notebooks_are_chosen_by_the_start_of_their_names(capsys):
    assert [path.stem[:2] for path in execute.chosen(["08", "10_", NOTEBOOKS[0].name])] == [
        "08", "10", "01",
    ]  # fmt: skip
    assert execute.chosen([]) == NOTEBOOKS
    with pytest.raises(SystemExit, match="2"):
        execute.main(["99"])
    assert_names(capsys.readouterr().err, "99", *(path.stem for path in NOTEBOOKS))
