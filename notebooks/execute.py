"""Execute notebooks and keep their outputs: `python -m notebooks.execute [08 10 ...]`.

A notebook keeps beside its outputs a record of what they are made of, its code and the committed
results that it read, so that a test can refuse outputs of other code or of results that have
changed since.
"""

import argparse
import base64
import contextlib
import hashlib
import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import nbformat
import pandas as pd
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

from experiments.files import tables

FOLDER = Path(__file__).parent
COMMITTED = FOLDER.parent / "experiments" / "results"
RECORD = "made_of"  # the notebook's metadata

# Run in the notebook's process, before its cells and after them.
_BEFORE = """\
from notebooks import execute as _execute
_reading = _execute.reading()
_read = _reading.__enter__()"""
_AFTER = "import json as _json; print(_json.dumps(_execute.digests(_read)))"


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the cells of a notebook that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@contextlib.contextmanager
def reading() -> Iterator[set[Path]]:
    """Collect the files of committed results that are read meanwhile.

    Every table, of a paper or of a sweep, is read by this function, and has its facts beside it.
    """
    found: set[Path] = set()
    decode = tables.decode

    def noted(path: Path) -> pd.DataFrame:
        table = path.resolve()
        if table.is_relative_to(COMMITTED):
            found.update((table, table.with_suffix("").with_suffix(".json")))
        return decode(path)

    with mock.patch.object(tables, "decode", noted):
        yield found


def digests(paths: set[Path]) -> dict[str, str]:
    """Return a digest of each file's content, by its name below the committed results."""
    return {
        path.relative_to(COMMITTED).as_posix(): _digest(path.read_bytes()) for path in sorted(paths)
    }


def code_digest(notebook: nbformat.NotebookNode) -> str:
    """Return a digest of the code of a notebook."""
    return _digest("\0".join(cell.source for cell in code_cells(notebook)).encode())


def code_changed(notebook: nbformat.NotebookNode) -> list[str]:
    """Return ["its code"] if that has changed since a notebook's outputs were made, else []."""
    record = notebook.metadata.get(RECORD, {})
    return [] if record.get("code") == code_digest(notebook) else ["its code"]


def results_changed(notebook: nbformat.NotebookNode, read: dict[str, str]) -> list[str]:
    """Return which results are others than when a notebook's outputs were made.

    Args:
      notebook: as it is committed.
      read: digests of the committed results that it reads today.
    """
    before = notebook.metadata.get(RECORD, {}).get("results", {})
    return sorted(
        name for name in before.keys() | read.keys() if before.get(name) != read.get(name)
    )


def execute(path: Path) -> int:
    """Execute a notebook in its folder, write it with outputs and record.

    Returns:
      how many files of committed results it read.
    """
    notebook = nbformat.read(path, as_version=4)
    cells = notebook.cells
    before, after = nbformat.v4.new_code_cell(_BEFORE), nbformat.v4.new_code_cell(_AFTER)
    notebook.cells = [before, *cells, after]
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(FOLDER)}},
    )
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index, store_history=cell is not before)
    read = json.loads(after.outputs[0].text)
    notebook.cells = cells
    for cell in code_cells(notebook):
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = _smaller(data["image/png"])
    notebook.metadata[RECORD] = {"code": code_digest(notebook), "results": read}
    nbformat.write(notebook, path)
    return len(read)


def chosen(names: list[str]) -> list[Path]:
    """Return the notebooks whose names begin so; all, if none is named.

    Raises:
      ValueError: one line: no name begins so.
    """
    every = sorted(FOLDER.glob("*.ipynb"))
    found = []
    for name in names or [""]:
        stem = Path(name).name.removesuffix(".ipynb")
        own = [path for path in every if path.stem.startswith(stem)]
        if not own:
            known = ", ".join(path.stem for path in every)
            raise ValueError(f"no notebook begins with '{name}': there are {known}")
        found += [path for path in own if path not in found]
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.execute", description="Execute notebooks and keep their outputs."
    )
    parser.add_argument("names", nargs="*", help="how their names begin, such as 08; all")
    try:
        paths = chosen(parser.parse_args(arguments).names)
    except ValueError as error:
        parser.error(str(error))
    for path in paths:
        start = time.monotonic()
        try:
            files = execute(path)
        except CellExecutionError as error:
            sys.exit(f"{path.stem} is left as it was, for a cell failed:\n{error}")
        read = f", {files} files of results" if files else ""
        print(f"{path.stem}: {time.monotonic() - start:.0f} s{read}", flush=True)


def _smaller(encoded: str) -> str:
    """Return a figure with 256 colours, which takes a third of the space."""
    figure = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")
    content = io.BytesIO()
    figure.quantize(256, dither=Image.Dither.NONE).save(content, "PNG", optimize=True)
    return base64.b64encode(content.getvalue()).decode() + "\n"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


if __name__ == "__main__":
    main()
