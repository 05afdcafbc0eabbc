"""CSV tables of a run, appended to at every log point; reading ignores an incomplete line.

`metrics.csv` does not depend on wall-clock time, so resumed and uninterrupted runs write identical
files; times are in `timing.csv`.
"""

import csv
import io
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.runs.log import Elapsed, Row
from experiments.storage import files, stored


class Written(NamedTuple):
    """Size and checksum of a file, or of its beginning."""

    size: int = 0  # in bytes
    crc32: int = 0


class CSVTable:
    """CSV file to which whole log points are appended, with fsync after each.

    Columns are those of the first row: the keys, then all others in alphabetical order. NaN is an
    empty cell. Numbers have enough digits to be read back exactly.
    """

    def __init__(
        self, path: str | os.PathLike, keys: Sequence[str], kept: Written = Written()
    ) -> None:
        """Open `path`, truncate it to the content `kept`, and continue there."""
        self._path, self._keys, self.written = Path(path), list(keys), kept
        self.columns: list[str] | None = None  # None before the first row
        if kept.size:
            with self._path.open("r+b") as file:
                self.columns = file.readline().decode().strip().split(",")
                file.truncate(kept.size)
                os.fsync(file.fileno())
        else:
            self._path.unlink(missing_ok=True)

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows, and flush them to disk.

        Raises:
          ValueError: the columns of a row differ from those of the first.
          OSError: the file is missing, another process has changed it, or the disk is full.
        """
        head = self.columns is None
        if head:
            self.columns = self._keys + sorted(set(rows[0]) - set(self._keys))
        for row in rows:
            if differing := sorted(set(row) ^ set(self.columns)):
                raise ValueError(
                    f"{self._path}: a row differs from the first in columns {', '.join(differing)}"
                )
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.columns] * head)
        writer.writerows([_cell(row[name]) for name in self.columns] for row in rows)
        added = text.getvalue().encode()
        with self._path.open("wb" if head else "r+b") as file:
            if file.seek(0, os.SEEK_END) != self.written.size:
                raise OSError(f"{self._path} was changed by another process during the run")
            file.write(added)
            file.flush()
            os.fsync(file.fileno())
        size, crc32 = self.written
        self.written = Written(size + len(added), zlib.crc32(added, crc32))


class CSVSink:
    """`metrics.csv`, one row per log point and seed, and `timing.csv`, one row per log point."""

    def __init__(
        self, folder: Path, metrics: Written = Written(), timing: Written = Written(), step: int = 0
    ) -> None:
        """Continue after `step` with these contents of the files; by default, start new files."""
        self._metrics = CSVTable(folder / "metrics.csv", ["seed", "step"], metrics)
        self._timing = CSVTable(folder / "timing.csv", ["step"], timing)
        self._last = step

    @property
    def written(self) -> dict[str, Written]:
        """Size and checksum of both files by name."""
        return {"metrics.csv": self._metrics.written, "timing.csv": self._timing.written}

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        """Append a log point to both files."""
        self._metrics.append(rows)
        speed = (step - self._last) * len(rows) / elapsed.seconds
        times = {"step": step, **elapsed._asdict(), "steps_per_second": speed}
        self._timing.append([times])
        self._last = step


def _cell(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = value[()]
    if isinstance(value, (bool, int, np.integer)):
        return str(int(value))
    if np.isnan(value):
        return ""
    # Shortest text that is read back as the same float32 or float64.
    return str(value) if isinstance(value, np.floating) else repr(float(value))


def check_written(path: Path, written: Written) -> None:
    """Raise ValueError if a file does not begin with bytes of this size and checksum."""
    content = path.read_bytes()[: written.size] if path.is_file() else b""
    if Written(len(content), zlib.crc32(content)) != written:
        raise ValueError(
            f"{path} was edited before the last checkpoint of the run (rows are missing, "
            "doubled or changed): restore it, or start a new run in another --out"
        )


def written_timing(path: Path, steps: Sequence[int]) -> Written:
    """Return size and checksum of the beginning of `timing.csv`, up to the log points at `steps`.

    Raises:
      ValueError: the file does not have exactly one row per log point.
    """
    if not steps:
        return Written()
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    kept = lines[: len(steps) + 1]
    content = b"".join(kept)
    found = [line.partition(b",")[0].decode(errors="replace") for line in kept[1:]]
    if found != [str(step) for step in steps] or not content.endswith(b"\n"):
        raise ValueError(
            f"{path} does not have one row for each log point up to the checkpoint: restore it, or "
            "start a new run in another --out"
        )
    return Written(len(content), zlib.crc32(content))


def read_table(
    path: Path, columns: tuple[str, ...], read: Callable[[Path], bytes] = files.read_bytes
) -> pd.DataFrame | None:
    """Return the complete lines of a CSV file as a frame, or None if it has no rows.

    Raises:
      ValueError: the file is damaged, or a column is missing.
    """
    content = read(path) if path.is_file() else b""
    complete = content[: content.rfind(b"\n") + 1]
    if complete.count(b"\n") < 2:
        return None
    return stored.parse(path, complete, columns)
