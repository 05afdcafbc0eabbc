"""The command line of a benchmark: options from a dataclass, Markdown tables, a file of numbers."""

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from experiments.benchmarks import timing
from experiments.cli.options import Parser, add_options, read_options
from experiments.statistics.markdown import markdown
from experiments.storage.files import read_json, write_json
from jaxreplay.option import Config, option
from jaxreplay.saving import check_writable

Cell = str | int | float | None
Options = TypeVar("Options", bound=Config)


@dataclasses.dataclass(frozen=True)
class TimedSettings(Config):
    """Common options of benchmarks with contenders that take turns."""

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


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a Markdown table with its first column aligned left and the others right.

    Numbers have three significant digits; None is a dash.
    """
    return markdown([list(head), *([_text(cell) for cell in row] for row in rows)]).rstrip()


def write(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write numbers together with their machine, unless `path` is None."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"machine": timing.machine(), **content})


def numbers(text: str) -> Path:
    """Parse the path of a JSON file of numbers; create nothing.

    Raises:
      ArgumentTypeError: the path is not writable, or is a file that no benchmark wrote.
    """
    path = Path(text)
    if path.suffix != ".json":
        raise argparse.ArgumentTypeError(f"{path} must end in .json")
    try:
        check_writable(path, "give the name of a file")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{parent} is not writable: choose another folder")
    if path.exists() and not _has_machine(path):
        raise argparse.ArgumentTypeError(
            f"{path} was not written by a benchmark: remove it, or choose another file"
        )
    return path


def _has_machine(path: Path) -> bool:
    """Return whether a file names the machine of its numbers, as `write` does."""
    try:
        content = read_json(path)
    except ValueError:
        return False
    machine = content.get("machine") if isinstance(content, dict) else None
    return isinstance(machine, dict) and {"device", "jax"} <= machine.keys()


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.2f}" if abs(cell) < 10 else f"{cell:.1f}"
