"""Folders of runs on a command line, each with a label."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path


def labelled(text: str) -> tuple[str, Path]:
    """Read `FOLDER` or `LABEL=FOLDER`; the label is the folder's name unless it is given."""
    label, equals, folder = text.rpartition("=")
    for what, name in (("folder's name", folder), ("label", label if equals else "none")):
        if not name.strip():
            raise argparse.ArgumentTypeError(f"the {what} is empty: give one, as in x=runs/x")
    # Letters that the locale lacks are bytes in disguise, which can't be drawn.
    return os.fsencode(label or Path(folder).name).decode(errors="replace"), Path(folder)


def distinct(runs: Sequence[tuple[str, Path]]) -> dict[str, Path]:
    """Return the folders by label.

    Raises:
      ValueError: two have the same label.
    """
    for number, (label, _) in enumerate(runs):
        if label in dict(runs[:number]):
            raise ValueError(f"two runs are called '{label}': use LABEL=FOLDER")
    return dict(runs)
