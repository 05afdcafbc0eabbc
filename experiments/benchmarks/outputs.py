"""Where benchmarks write: files of theirs alone are written over."""

import argparse
import json
from pathlib import Path

from experiments.cli.options import Parser

_OURS = ("machine", "versions")  # one of them is in all that benchmarks write


def add_out(parser: Parser) -> None:
    """Add the option `--out`."""
    parser.add_argument("--out", type=numbers, metavar="FILE", help="write the numbers as JSON")


def numbers(text: str) -> Path:
    """Read the name of a file for numbers, and make its folder.

    Raises:
      ArgumentTypeError: one line: numbers can't be written there, or no benchmark wrote what is.
    """
    path = _path(text, ".json")
    if path.exists() and not _is_ours(path):
        raise argparse.ArgumentTypeError(f"{path} was not written by a benchmark: choose another")
    return path


def picture(text: str) -> Path:
    """Read the name of a new PNG, and make its folder.

    Raises:
      ArgumentTypeError: one line: it can't be written there, or there is something.
    """
    path = _path(text, ".png")
    if path.exists():
        raise argparse.ArgumentTypeError(f"{path} is there already: remove it, or choose another")
    return path


def _path(text: str, ending: str) -> Path:
    path = Path(text)
    if path.suffix != ending:
        raise argparse.ArgumentTypeError(f"{path} is no {ending} file: use this ending")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{path.parent} can't be made ({error.strerror}): choose another"
        ) from None
    return path


def _is_ours(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and any(isinstance(content.get(x), dict) for x in _OURS)
