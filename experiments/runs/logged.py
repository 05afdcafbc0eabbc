"""The tables of a run, as far as they are written."""

import io
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from experiments.analysis import files
from experiments.runs import checksums


def times(path: Path) -> tuple[pd.DataFrame | None, list[str]]:
    """Read the times of a run's log points, and remarks; None: there are none that can be."""
    frame = table(path, ("step", "seconds", "steps_per_second"), checksums.beginning)
    if frame is not None and (frame < 0).any(axis=None):
        return None, [f"{path} has negative times: it is left out"]
    return frame, []


def table(
    path: Path, columns: tuple[str, ...], read: Callable[[Path], bytes] = files.read_bytes
) -> pd.DataFrame | None:
    """Read the whole lines of a CSV file; None: there are none.

    Raises:
      ValueError: one line: it is damaged, or a column is missing.
    """
    if not path.is_file():
        return None
    content = read(path)
    whole = content[: content.rfind(b"\n") + 1]
    if whole.count(b"\n") < 2:
        return None
    try:
        frame = pd.read_csv(io.BytesIO(whole))
    except ValueError as error:  # pandas' errors are ValueErrors
        raise ValueError(f"{path} is damaged ({error}): restore it") from error
    check_columns(path, frame, columns)
    return frame


def check_columns(path: Path, frame: pd.DataFrame, columns: tuple[str, ...]) -> None:
    """Refuse a table that lacks a column, or holds anything but numbers.

    Raises:
      ValueError: one line that names the file.
    """
    if lacking := sorted(set(columns) - set(frame)):
        raise ValueError(f"{path} lacks column {lacking[0]}: restore it")
    if not all(pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes):
        raise ValueError(f"{path} is damaged (not all are numbers): restore it")
