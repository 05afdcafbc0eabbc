"""Where metrics go while a run trains: CSV files, TensorBoard, Weights & Biases, the terminal.

`metrics.csv` holds nothing that depends on wall-clock time, so that a resumed run's file is
identical to an uninterrupted one's; times go to `timing.csv`.
"""

import contextlib
import csv
import io
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

Row = Mapping[str, Any]  # seed, step, and metrics by name


def say(line: str) -> None:
    """Print a line of progress to standard error, flushed at once."""
    print(line, file=sys.stderr, flush=True)


class Sink(Protocol):
    """One place that metrics go to."""

    def log(self, step: int, rows: Sequence[Row], seconds: float) -> None:
        """Write one log point: a row per seed, and the seconds of training since the last one."""

    def close(self) -> None:
        """Finish writing."""


class CSVTable:
    """A CSV file that grows by whole log points, each forced to disk.

    Columns are those of the first row: the keys first, then the rest in alphabetical order. NaN is
    an empty cell. Numbers are written so that reading them gives the same bits.
    """

    def __init__(
        self, path: str | os.PathLike, keys: Sequence[str], resume_step: int | None = None
    ) -> None:
        """Open `path`; with `resume_step`, keep its rows up to that step and continue."""
        self._path, self._keys = Path(path), list(keys)
        self._columns: list[str] | None = None
        if resume_step is not None and self._path.exists():
            self._truncate(resume_step)
        else:
            self._path.unlink(missing_ok=True)

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows and force them to disk.

        Raises:
          ValueError: a row has other columns than the first.
        """
        head = self._columns is None
        if head:
            self._columns = self._keys + sorted(set(rows[0]) - set(self._keys))
        for row in rows:
            if set(row) != set(self._columns):
                names = ", ".join(sorted(set(row) ^ set(self._columns)))
                raise ValueError(f"{self._path}: a row differs from the first in columns {names}")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if head:
            writer.writerow(self._columns)
        writer.writerows([_cell(row[name]) for name in self._columns] for row in rows)
        with self._path.open("a") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())

    def _truncate(self, step: int) -> None:
        lines = self._path.read_text().splitlines(keepends=True)
        # A line without a newline was cut off when the process was killed.
        head, *rest = [line for line in lines if line.endswith("\n")] or [""]
        columns = head.strip().split(",")
        kept = [line for line in rest if int(line.split(",")[columns.index("step")]) <= step]
        if kept:
            self._columns = columns
        temporary = self._path.with_name(self._path.name + ".tmp")
        with temporary.open("w") as file:
            file.writelines([head, *kept] if kept else [])
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)


class CSVSink:
    """`metrics.csv`, one row per log point and seed, and `timing.csv`, one per log point."""

    def __init__(self, folder: Path, resume_step: int | None) -> None:
        self._metrics = CSVTable(folder / "metrics.csv", ["seed", "step"], resume_step)
        self._timing = CSVTable(folder / "timing.csv", ["step"], resume_step)
        self._last = resume_step or 0

    def log(self, step: int, rows: Sequence[Row], seconds: float) -> None:
        self._metrics.append(rows)
        speed = (step - self._last) * len(rows) / seconds
        self._timing.append([{"step": step, "seconds": seconds, "steps_per_second": speed}])
        self._last = step

    def close(self) -> None:
        pass


class TensorBoardSink:
    """TensorBoard events: the mean over seeds of every metric, and every seed's return."""

    def __init__(self, folder: Path, resume_step: int | None) -> None:
        from tensorboardX import SummaryWriter  # slow to import

        purge = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def log(self, step: int, rows: Sequence[Row], seconds: float) -> None:
        del seconds
        for name, value in mean_over_seeds(rows).items():
            self._writer.add_scalar(name, value, step)
        for row in rows:
            self._writer.add_scalar(f"seed_{row['seed']}/eval_return", row["eval_return"], step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """Weights & Biases: the mean over seeds of every metric.

    A resumed run continues as another run of the same group, which is named after the folder.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import wandb  # optional

        group = folder.resolve().name
        self._run = wandb.init(project="jaxreplay", group=group, dir=str(folder), config=config)

    def log(self, step: int, rows: Sequence[Row], seconds: float) -> None:
        del seconds
        self._run.log(mean_over_seeds(rows), step=step)

    def close(self) -> None:
        self._run.finish()


class TerminalSink:
    """A progress bar with steps, steps/s, return and time left; plain lines without a terminal."""

    _PAUSE = 5.0  # seconds between two plain lines

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        console = Console(stderr=True)
        self._label, self._total, self._done = label, total, done
        self._bar: Progress | None = None
        self._last_line = -math.inf
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=None),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
                TextColumn("{task.fields[speed]}"),
                TextColumn("{task.fields[result]}"),
                TimeRemainingColumn(compact=True),
                console=console,
            )
            self._task = self._bar.add_task(
                label, total=total, completed=done, speed="", result="compiling"
            )
            self._bar.start()
        else:
            print(f"{label}: compiling", file=sys.stderr, flush=True)

    def log(self, step: int, rows: Sequence[Row], seconds: float) -> None:
        speed = (step - self._done) * len(rows) / seconds
        self._done = step
        result = f"return {mean_over_seeds(rows).get('eval_return', math.nan):.1f}"
        if self._bar is not None:
            self._bar.update(
                self._task, completed=step, speed=f"{speed:,.0f} steps/s", result=result
            )
            return
        now = time.monotonic()
        if step == self._total or now - self._last_line > self._PAUSE:
            self._last_line = now
            left = (self._total - step) * len(rows) / speed
            print(
                f"{self._label}: {step:,}/{self._total:,} steps, {speed:,.0f} steps/s, "
                f"{result}, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


class Sinks:
    """Several sinks as one, closed whatever happens."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def __enter__(self) -> "Sinks":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(sink.close)

    def log(self, step: int, rows: Sequence[Row], seconds: float) -> None:
        """Hand one log point to every sink."""
        for sink in self._sinks:
            sink.log(step, rows, seconds)


def mean_over_seeds(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of every metric over the seeds that have a number for it."""
    means = {}
    for name in rows[0]:
        values = np.array([row[name] for row in rows], np.float64)
        if name not in ("seed", "step") and not np.isnan(values).all():
            means[name] = float(np.nanmean(values))
    return means


def _cell(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = value[()]
    if isinstance(value, (bool, int, np.integer)):
        return str(int(value))
    if np.isnan(value):
        return ""
    # The shortest text that gives the same float32 (or float64) back.
    return str(value) if isinstance(value, np.floating) else repr(float(value))
