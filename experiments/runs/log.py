"""Where metrics go while a run trains: CSV files, TensorBoard, Weights & Biases, the terminal.

`metrics.csv` holds nothing that depends on wall-clock time, so that a resumed run's file is
identical to an uninterrupted one's; times go to `timing.csv`.
"""

import contextlib
import csv
import functools
import io
import math
import os
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from jaxreplay.saving import printable

Row = Mapping[str, Any]  # seed, step, and metrics by name


def say(line: str) -> None:
    """Print a line of progress to standard error, flushed at once; nobody has to read it."""
    with contextlib.suppress(BrokenPipeError):
        print(printable(line), file=sys.stderr, flush=True)


def show(result: str) -> None:
    """Print a result to standard output, at once, where work goes on whether it is read or not."""
    with contextlib.suppress(BrokenPipeError):
        print(result, flush=True)


@functools.cache
def say_once(line: str) -> None:
    """Print a line of progress, unless this process has printed the same before."""
    say(line)


class Elapsed(NamedTuple):
    """What a log point took."""

    seconds: float  # of training since the last one
    start_up: float = 0.0  # seconds before that, in which the process got ready to train
    compiling: float = 0.0  # of both: JAX was tracing, compiling or loading programs


class Sink(Protocol):
    """One place that metrics go to."""

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        """Write one log point: a row per seed, and the time since the last one."""

    def close(self) -> None:
        """Finish writing."""


class Written(NamedTuple):
    """How much of a file a run has written, and a checksum of that."""

    size: int = 0  # bytes
    crc32: int = 0


class CSVTable:
    """A CSV file that grows by whole log points, each forced to disk.

    Columns are those of the first row: the keys first, then the rest in alphabetical order. NaN is
    an empty cell. Numbers are written so that reading them gives the same bits.
    """

    def __init__(
        self, path: str | os.PathLike, keys: Sequence[str], kept: Written = Written()
    ) -> None:
        """Open `path`, keep what the run had written of it, and continue there."""
        self._path, self._keys, self.written = Path(path), list(keys), kept
        self._columns: list[str] | None = None
        if kept.size:
            with self._path.open("r+b") as file:
                self._columns = file.readline().decode().strip().split(",")
                file.truncate(kept.size)
                os.fsync(file.fileno())
        else:
            self._path.unlink(missing_ok=True)

    @property
    def columns(self) -> list[str] | None:
        """The names of its columns; None: it has no row yet."""
        return self._columns

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows and force them to disk.

        Raises:
          ValueError: a row has other columns than the first.
          OSError: the file is gone, somebody else has changed it, or the disk is full.
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
        added = text.getvalue().encode()
        with self._path.open("wb" if head else "r+b") as file:
            if file.seek(0, os.SEEK_END) != self.written.size:
                raise OSError(
                    f"{self._path} was changed by somebody else while the run was at work"
                )
            file.write(added)
            file.flush()
            os.fsync(file.fileno())
        size, crc32 = self.written
        self.written = Written(size + len(added), zlib.crc32(added, crc32))


class CSVSink:
    """`metrics.csv`, one row per log point and seed, and `timing.csv`, one per log point."""

    def __init__(
        self, folder: Path, metrics: Written = Written(), timing: Written = Written(), step: int = 0
    ) -> None:
        """Continue after `step`, with what was written by then; the default begins anew."""
        self._metrics = CSVTable(folder / "metrics.csv", ["seed", "step"], metrics)
        self._timing = CSVTable(folder / "timing.csv", ["step"], timing)
        self._last = step

    @property
    def metrics(self) -> Written:
        """What is written of `metrics.csv`."""
        return self._metrics.written

    @property
    def written(self) -> dict[str, list[Written]]:
        """What is written of both, by name."""
        return {"metrics.csv": [self._metrics.written], "timing.csv": [self._timing.written]}

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        self._metrics.append(rows)
        speed = (step - self._last) * len(rows) / elapsed.seconds
        times = {"step": step, **elapsed._asdict(), "steps_per_second": speed}
        known = self._timing.columns or times  # a run that older code began goes on with its own
        self._timing.append([{name: value for name, value in times.items() if name in known}])
        self._last = step

    def close(self) -> None:
        pass


def check_written(path: Path, written: Written) -> None:
    """Refuse a file that does not begin with what a run wrote.

    Raises:
      ValueError: one line: rows are missing, doubled or changed.
    """
    content = path.read_bytes()[: written.size] if path.is_file() else b""
    if Written(len(content), zlib.crc32(content)) != written:
        raise ValueError(
            f"{path} is not what the run wrote up to its checkpoint (rows are missing, doubled or "
            "changed): restore it, or start a new run in another --out"
        )


def written_timing(path: Path, steps: Sequence[int]) -> Written:
    """Return what a run has written of `timing.csv` at log points `steps`.

    Raises:
      ValueError: one line: the file has not just one row for each of them.
    """
    if not steps:
        return Written()
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    content = b"".join(lines[: len(steps) + 1])
    found = [line.partition(b",")[0].decode(errors="replace") for line in lines[1 : len(steps) + 1]]
    if found != [str(step) for step in steps] or not content.endswith(b"\n"):
        raise ValueError(
            f"{path} has not one row for each log point up to the checkpoint: restore it, or start "
            "a new run in another --out"
        )
    return Written(len(content), zlib.crc32(content))


EVENTS_SUFFIX = ".jaxreplay"  # of event files, whose names are else as everybody's


class TensorBoardSink:
    """TensorBoard events: the mean over seeds of every metric, and every seed's return."""

    def __init__(self, folder: Path, resume_step: int | None) -> None:
        from tensorboardX import SummaryWriter  # slow to import

        purge = None if resume_step is None else resume_step + 1
        place = str(folder / "tensorboard")
        self._writer = SummaryWriter(place, purge_step=purge, filename_suffix=EVENTS_SUFFIX)

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        del elapsed
        for name, value in mean_over_seeds(rows).items():
            self._writer.add_scalar(name, value, step)
        for row in rows:
            self._writer.add_scalar(f"seed_{row['seed']}/eval_return", row["eval_return"], step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """Weights & Biases: the mean over seeds of every metric, and every seed's return.

    A resumed run continues as another run of the same group, which is named after the folder.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import wandb  # optional

        group = folder.resolve().name
        self._run = wandb.init(project="jaxreplay", group=group, dir=str(folder), config=config)

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        del elapsed
        # W&B puts what shares a prefix into one section: the curves of all seeds.
        returns = {f"eval_return/seed_{row['seed']}": float(row["eval_return"]) for row in rows}
        self._run.log(mean_over_seeds(rows) | returns, step=step)

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
        if console.is_terminal:  # where `waiting` is seen until the first log point
            self._bar = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=None),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
                TextColumn("{task.fields[speed]}"),
                TextColumn("{task.fields[result]}"),
                TimeRemainingColumn(compact=True),
                console=console,
            )
            self._task = self._bar.add_task(label, total=total, completed=done, speed="", result="")
        else:
            say(f"{label}: compiling")

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        speed = (step - self._done) * len(rows) / elapsed.seconds
        self._done = step
        result = f"return {mean_over_seeds(rows).get('eval_return', math.nan):.1f}"
        if self._bar is not None:
            self._bar.update(
                self._task, completed=step, speed=f"{speed:,.0f} steps/s", result=result
            )
            self._bar.start()  # if it has not yet
            return
        now = time.monotonic()
        if step == self._total or now - self._last_line > self._PAUSE:
            self._last_line = now
            left = (self._total - step) * len(rows) / speed
            say(
                f"{self._label}: {step:,}/{self._total:,} steps, {speed:,.0f} steps/s, "
                f"{result}, {left:.0f} s left"
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

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        """Hand one log point to every sink."""
        for sink in self._sinks:
            sink.log(step, rows, elapsed)


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
