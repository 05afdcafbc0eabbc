"""Output of a run in addition to its tables: terminal, TensorBoard, Weights & Biases."""

import contextlib
import functools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from jaxreplay.saving import printable

Row = Mapping[str, Any]  # seed, step, and metrics by name
EVENTS_SUFFIX = ".jaxreplay"  # distinguishes our event files from other people's
_PAUSE = 5.0  # seconds between plain lines of progress


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


@functools.cache
def say_once(line: str) -> None:
    """Print a line of progress, at most once in this process."""
    say(line)


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


class Elapsed(NamedTuple):
    """Duration of a log point."""

    seconds: float  # duration of training since the previous log point
    start_up: float = 0.0  # seconds of preparation before training, at the first log point
    compiling: float = 0.0  # seconds, of both, in which JAX traced, compiled or loaded programs


class Sink(Protocol):
    """A destination of metrics."""

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        """Write a log point: one row per seed, and the time since the previous log point."""

    def close(self) -> None:
        """Finish writing."""


class TensorBoardSink:
    """TensorBoard events: the mean over seeds of every metric, and the return of every seed."""

    def __init__(self, folder: Path, resume_step: int | None) -> None:
        from tensorboardX import SummaryWriter  # imported here because it is slow

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
    """Weights & Biases: the mean over seeds of every metric, and the return of every seed.

    A resumed run is another run in the same group; the name of the group is that of the folder.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import wandb  # optional

        group = folder.resolve().name
        self._run = wandb.init(project="jaxreplay", group=group, dir=str(folder), config=config)

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        del elapsed
        # W&B shows metrics with the same prefix in one section.
        returns = {f"eval_return/seed_{row['seed']}": float(row["eval_return"]) for row in rows}
        self._run.log(mean_over_seeds(rows) | returns, step=step)

    def close(self) -> None:
        self._run.finish()


class TerminalSink:
    """Progress bar with steps, steps/s, return and time left; plain lines without a terminal."""

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        console = Console(stderr=True)
        self._label, self._total, self._done = label, total, done
        self._bar: Progress | None = None
        self._last_line = -math.inf
        if not console.is_terminal:
            say(f"{label}: compiling")
            return
        self._bar = Progress(  # starts at the first log point; `waiting` is visible until then
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[result]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self._task = self._bar.add_task(label, total=total, completed=done, speed="", result="")

    def log(self, step: int, rows: Sequence[Row], elapsed: Elapsed) -> None:
        speed = (step - self._done) * len(rows) / elapsed.seconds
        self._done = step
        result = f"return {mean_over_seeds(rows).get('eval_return', math.nan):.1f}"
        if self._bar is not None:
            shown = f"{speed:,.0f} steps/s"
            self._bar.update(self._task, completed=step, speed=shown, result=result)
            self._bar.start()
            return
        now = time.monotonic()
        if step == self._total or now - self._last_line > _PAUSE:
            self._last_line = now
            left = (self._total - step) * len(rows) / speed
            say(
                f"{self._label}: {step:,}/{self._total:,} steps, {speed:,.0f} steps/s, "
                f"{result}, {left:.0f} s left"
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def mean_over_seeds(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of every metric over the seeds with a value."""
    means = {}
    for name in rows[0]:
        values = np.array([row[name] for row in rows], np.float64)
        if name not in ("seed", "step") and not np.isnan(values).all():
            means[name] = float(np.nanmean(values))
    return means
