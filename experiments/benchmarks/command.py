"""The command line of a benchmark: options from a dataclass, a table and a file of results."""

import argparse
import dataclasses
import importlib.util
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from experiments.benchmarks import timing
from experiments.cli.parser import Parser, add_options, read_options
from experiments.files.disk import read_json, write_json
from experiments.runs.log import show
from experiments.statistics.markdown import markdown
from jaxreplay.option import Config, option
from jaxreplay.saving import check_writable

Row = Mapping[str, Any]  # column -> value
Options = TypeVar("Options", bound=Config)
_PEERS = ("flashbax", "rejax")  # packages whose versions are saved with the numbers


@dataclasses.dataclass(frozen=True)
class TimedSettings(Config):
    """Common options of benchmarks."""

    turns: int = option(7, "turns of each contender; times are medians over them", at_least=1)
    seconds: float = option(0.1, "approximate seconds of a turn", above=0)


def read(
    name: str, description: str | None, options: Options, argv: Sequence[str] | None
) -> tuple[Options, Path | None]:
    """Return a benchmark's options and the file for its numbers.

    Errors end the process with one line.
    """
    parser = Parser(
        prog=f"python -m experiments.benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, options)
    parser.add_argument("--out", type=numbers, metavar="FILE", help="write the numbers as JSON")
    args = parser.parse_args(argv)
    try:
        return read_options(args, options), args.out
    except ValueError as error:
        parser.error(str(error))


def show_table(rows: Sequence[Row]) -> None:
    """Print a table of rows with the same columns, without `us`, the times of single turns."""
    columns = [name for name in rows[0] if name != "us"]
    show(markdown([columns, *([_text(row[name]) for name in columns] for row in rows)]))


def write(path: Path | None, settings: Mapping[str, Any], results: Sequence[Row]) -> None:
    """Write settings and results together with machine and versions, unless `path` is None."""
    if path is None:
        return
    installed = [name for name in _PEERS if importlib.util.find_spec(name)]
    peers = {name: metadata.version(name) for name in installed}
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {**timing.machine(), **peers}
    write_json(path, {"machine": machine, "settings": settings, "results": results})


def numbers(text: str) -> Path:
    """Parse the path of a JSON file of numbers; create nothing.

    Raises:
      ArgumentTypeError: the path is not writable, or is a file that no benchmark wrote.
    """
    path = Path(text)
    try:
        if path.suffix != ".json":
            raise ValueError(f"{path} must end in .json")
        check_writable(path, "give the name of a file")
        content = read_json(path) if path.exists() else {"machine": {}}
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{parent} is not writable: choose another folder")
    if not (isinstance(content, dict) and isinstance(content.get("machine"), dict)):
        raise argparse.ArgumentTypeError(
            f"{path} was not written by a benchmark: remove it, or choose another file"
        )
    return path


def _text(cell: str | int | float | None) -> str:
    """Return a cell of a table; numbers have three significant digits, and None is a dash."""
    if cell is None or isinstance(cell, str):
        return cell or "-"
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.2f}" if abs(cell) < 10 else f"{cell:.1f}"
