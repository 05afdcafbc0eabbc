"""Where benchmarks write: files of theirs alone are written over."""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from experiments.analysis.files import read_json, write_json
from experiments.benchmarks import timing
from jaxreplay.saving import check_writable

MARK = "jaxreplay experiments.benchmarks"  # the software that a picture of ours names


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add the option `--out`."""
    parser.add_argument("--out", type=numbers, metavar="FILE", help="write the numbers as JSON")


def add_figure(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option `--figure`; `what` is shown."""
    parser.add_argument("--figure", type=picture, metavar="FILE", help=f"plot {what} as a PNG")


def write(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write numbers, if they are wanted, and what machine they are of, if that is not in them."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"machine": timing.machine(), **content})


def numbers(text: str) -> Path:
    """Read the name of a file for numbers; create nothing.

    Raises:
      ArgumentTypeError: one line: numbers can't be written there, or no benchmark wrote what is.
    """
    return _path(text, ".json", _has_machine)


def picture(text: str) -> Path:
    """Read the name of a PNG; create nothing.

    Raises:
      ArgumentTypeError: one line: it can't be written there, or no benchmark drew what is.
    """
    return _path(text, ".png", _is_marked)


def _path(text: str, ending: str, is_ours: Callable[[Path], bool]) -> Path:
    path = Path(text)
    if path.suffix != ending:
        raise argparse.ArgumentTypeError(f"{path} is no {ending} file: use this ending")
    try:
        check_writable(path, "give the name of a file")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    there = next(folder for folder in path.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"nothing can be written in {there}: choose another")
    if path.exists() and not is_ours(path):
        raise argparse.ArgumentTypeError(
            f"{path} was not written by a benchmark: remove it, or choose another"
        )
    return path


def _has_machine(path: Path) -> bool:
    """Tell whether a file says what machine its numbers are of, as all of ours do."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return False
    machine = content.get("machine") if isinstance(content, dict) else None
    return isinstance(machine, dict) and {"device", "jax"} <= machine.keys()


def _is_marked(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            return image.info.get("Software") == MARK
    except OSError:
        return False
