"""Output of runs while they train: terminal, CSV, TensorBoard, Weights & Biases."""

import contextlib
import csv
import io
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from experiments.files.disk import write_bytes
from jaxreplay.saving import printable

Row = Mapping[str, Any]  # seed, step, and metrics by name
EVENTS_SUFFIX = ".jaxreplay"  # distinguishes our event files from other people's


def escaped(text: str) -> str:
    """Return a text with control characters, except line breaks, escaped.

    Labels, names and folders may come from other people, and terminals obey control characters.
    """
    return "\n".join(map(printable, text.split("\n")))


def show(text: str, file: TextIO | None = None) -> None:
    """Print an `escaped` text to standard output, or to `file`; ignore a closed pipe."""
    with contextlib.suppress(BrokenPipeError):
        print(escaped(text), file=file or sys.stdout, flush=True)


def say(line: str) -> None:
    """Print a line of progress to standard error, with line breaks escaped; see `show`."""
    show(printable(line), sys.stderr)


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a spinner with a text and the elapsed time if standard error is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,  # piped results would otherwise go to standard error
    )
    bar.add_task(printable(text), total=None)
    with bar:
        yield


class Log(Protocol):
    """A destination of the metrics of a run, while it trains."""

    def begin(self, points: Sequence[Sequence[Row]]) -> None:
        """Begin with the earlier log points of a resumed run, if any; each has a row per seed."""

    def log(self, rows: Sequence[Row]) -> None:
        """Write a log point: one row per seed."""

    def close(self) -> None:
        """Finish writing."""


class CSVLog:
    """`metrics.csv`: one row per log point and seed, flushed to disk at every log point.

    Columns are seed and step, then all others in alphabetical order. NaN is an empty cell. Numbers
    have enough digits to be read back exactly. The file has no times, so that resumed and
    uninterrupted runs write the same bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.csv"
        self._columns: list[str] | None = None

    def begin(self, points: Sequence[Sequence[Row]]) -> None:
        write_bytes(self._path, self._text([row for rows in points for row in rows]))

    def log(self, rows: Sequence[Row]) -> None:
        with self._path.open("ab") as file:
            file.write(self._text(rows))
            file.flush()
            os.fsync(file.fileno())

    def _text(self, rows: Sequence[Row]) -> bytes:
        """Return rows as lines of CSV; a line of column names precedes the first row of a file."""
        text, head = io.StringIO(), self._columns is None and len(rows) > 0
        if head:
            self._columns = ["seed", "step", *sorted(set(rows[0]) - {"seed", "step"})]
        columns = self._columns or []
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([columns] * head)
        writer.writerows([_cell(row.get(name, math.nan)) for name in columns] for row in rows)
        return text.getvalue().encode()

    def close(self) -> None:
        pass


def _cell(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = value[()]
    if isinstance(value, (bool, int, np.integer)):
        return str(int(value))
    if np.isnan(value):
        return ""
    # Shortest text that is read back as the same float32 or float64.
    return str(value) if isinstance(value, np.floating) else repr(float(value))


class TensorBoardLog:
    """TensorBoard events: the mean over seeds of every metric, and the return of every seed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._writer = folder, None

    def begin(self, points: Sequence[Sequence[Row]]) -> None:
        from tensorboardX import SummaryWriter  # imported here because it is slow

        # Later points are from a run that was killed after its last checkpoint, or before any.
        purge = points[-1][0]["step"] + 1 if points else 0
        place = str(self._folder / "tensorboard")
        self._writer = SummaryWriter(place, purge_step=purge, filename_suffix=EVENTS_SUFFIX)

    def log(self, rows: Sequence[Row]) -> None:
        writer, step = self._writer, rows[0]["step"]
        assert writer is not None
        for name, value in mean_over_seeds(rows).items():
            writer.add_scalar(name, value, step)
        for row in rows:
            writer.add_scalar(f"seed_{row['seed']}/eval_return", row["eval_return"], step)
        writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandbLog:
    """Weights & Biases: the mean over seeds of every metric, and the return of every seed.

    A resumed run becomes another W&B run in the same group. The group has the name of the folder.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._folder, self._config, self._run = folder, config, None

    def begin(self, points: Sequence[Sequence[Row]]) -> None:
        del points
        import wandb  # optional

        group = self._folder.resolve().name
        self._run = wandb.init(
            project="jaxreplay", group=group, dir=str(self._folder), config=self._config
        )

    def log(self, rows: Sequence[Row]) -> None:
        # W&B shows metrics with the same prefix in one section.
        returns = {f"eval_return/seed_{row['seed']}": float(row["eval_return"]) for row in rows}
        assert self._run is not None
        self._run.log(mean_over_seeds(rows) | returns, step=rows[0]["step"])

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


def mean_over_seeds(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of every metric over the seeds with a value."""
    means = {}
    for name in rows[0]:
        values = np.array([row[name] for row in rows], np.float64)
        if name not in ("seed", "step") and not np.isnan(values).all():
            means[name] = float(np.nanmean(values))
    return means
