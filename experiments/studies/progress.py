"""The progress bar of a study."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from experiments.runs import rates
from experiments.runs.log import escaped, say

_PAUSE = 5.0  # seconds between two plain lines


class Bar:
    """Progress bar with the agent steps of all runs, the current programs and the time left.

    Without a terminal, plain lines show the same.
    """

    def __init__(self, steps: int, runs: int) -> None:
        """Start a bar for a total of `steps` agent steps and `runs` runs."""
        self._total, self._runs = steps, runs
        self._done, self._ended, self._failed = 0, 0, 0
        self._at_work: dict[int, str] = {}  # device -> name of its program
        self._since: float | None = None  # time of the first steps
        self._before = 0  # steps done by then
        self._last_line = time.monotonic()
        self._over = False  # whether the last plain line was printed
        self._result = ""  # the latest return, of a study with a single batch
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = ("{task.completed:,.0f}/{task.total:,.0f} steps", "{task.fields[said]}")
            texts = [TextColumn(text, markup=False) for text in columns]
            self._bar = Progress(BarColumn(bar_width=24), *texts, console=console)
            self._task = self._bar.add_task("", total=steps, said="compiling")
            self._bar.start()

    def works_on(self, device: int, what: str | None, steps: int = 0) -> None:
        """Set the current work of a device, and add new agent steps.

        Args:
          device: number of the device.
          what: name of the current program, or None if the device is idle.
          steps: new agent steps, summed over the runs of the batch.
        """
        self._at_work.pop(device, None)
        if what is not None:
            self._at_work[device] = what
        self._done += steps
        if steps and self._since is None:  # excludes compilation from the rate
            self._since, self._before = time.monotonic(), self._done
        self._show()

    def shows(self, result: str) -> None:
        """Set the text of the latest result, such as "return 200.0"."""
        self._result = result

    def ended(self, runs: int, failed: int) -> None:
        """Add finished runs, `failed` of them without a result."""
        self._ended += runs
        self._failed += failed
        self._show()

    def close(self) -> None:
        """Stop the bar and restore the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, said=escaped(self._said()))
            return
        over = self._ended == self._runs and not self._over
        if time.monotonic() - self._last_line > _PAUSE or over:
            self._last_line, self._over = time.monotonic(), over or self._over
            say(f"{self._done:,}/{self._total:,} steps, {self._said()}")

    def _said(self) -> str:
        parts = [f"{self._ended}/{self._runs} runs"]
        if self._failed:
            parts.append(f"{self._failed} failed")
        if self._since is not None and self._done > self._before:
            rate = (self._done - self._before) / (time.monotonic() - self._since)
            left = rates.in_words((self._total - self._done) / rate / 60)
            parts.append(f"{rate:,.0f} steps/s, {left} left")
        results = [self._result] if self._result else []
        return ", ".join([*parts, *results, *dict.fromkeys(self._at_work.values())])
