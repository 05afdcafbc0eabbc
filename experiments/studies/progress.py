"""Storage of finished runs and the progress bar of all runs, shared by all engines."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from experiments.runs import interrupt, rates
from experiments.runs.interrupt import Stopped
from experiments.runs.log import say
from experiments.studies.batch import Outcome
from experiments.studies.plan import Plan
from experiments.studies.store import Store

_PAUSE = 10.0  # seconds between two plain lines


class Bar:
    """Agent steps of all runs, the current programs and the time left.

    They are shown as a progress bar, or in plain lines without a terminal.
    """

    def __init__(self, steps: int, runs: int) -> None:
        """Start a bar for a total of `steps` agent steps and `runs` runs."""
        self._total, self._runs = steps, runs
        self._done, self._ended, self._failed = 0, 0, 0
        self._at_work: dict[int, str] = {}  # by device
        self._since: float | None = None  # time of the first steps
        self._before = 0  # steps done by then
        self._last_line = time.monotonic()
        self._over = False  # whether the last plain line was printed
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = ("{task.completed:,.0f}/{task.total:,.0f} steps", "{task.fields[said]}")
            texts = [TextColumn(text) for text in columns]
            self._bar = Progress(BarColumn(bar_width=24), *texts, console=console)
            self._task = self._bar.add_task("", total=steps, said="compiling")
            self._bar.start()

    def works_on(self, device: int, what: str | None) -> None:
        """Set the current work of a device, or None if it is idle."""
        self._at_work.pop(device, None)
        if what is not None:
            self._at_work[device] = what
        self._show()

    def advance(self, steps: int) -> None:
        """Add agent steps, summed over the runs of a batch."""
        self._done += steps
        if self._since is None:  # excludes compilation from the rate
            self._since, self._before = time.monotonic(), self._done
        self._show()

    def spare(self, steps: int, runs: int) -> None:
        """Subtract unneeded agent steps and runs from the totals."""
        self._total, self._runs = self._total - steps, self._runs - runs
        if self._bar is not None:
            self._bar.update(self._task, total=self._total)

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
            self._bar.update(self._task, completed=self._done, said=self._said())
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
        return ", ".join([*parts, *dict.fromkeys(self._at_work.values())])


class Keeper:
    """Stores finished runs in a sweep's table, and shows one progress bar for all runs.

    The context manager writes the table on exit, even after an error. It raises `Stopped` on Ctrl-C
    and after failed runs.
    """

    def __init__(self, plan: Plan, store: Store, bar: Bar | None = None) -> None:
        """Start the progress bar.

        Args:
          plan: missing runs.
          store: store that receives the results.
          bar: progress bar of an enclosing search, which stays open and handles failed runs; by
            default, a bar for this plan alone.
        """
        self._plan, self._store, self._is_all = plan, store, bar is None
        self.bar = bar or Bar(plan.steps, plan.runs)

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_all:
            self.bar.close()
        self._store.write()
        if isinstance(error, KeyboardInterrupt):
            raise self.unfinished("stopped", interrupt.exit_code(error)) from None
        failures = self._store.facts["failed"]
        if error is None and failures and self._is_all:
            run, why = next(iter(failures.items()))
            line = f"{len(failures)} runs failed, such as {run}: {why}"
            raise self.unfinished(line, 1)

    def keep(self, outcome: Outcome) -> None:
        """Store the outcome of a batch."""
        if outcome.failures:
            self._store.fail(outcome.failures)
        if outcome.results:
            self._store.add(outcome.results, outcome.cost)
        self.bar.ended(len(outcome.results) + len(outcome.failures), len(outcome.failures))

    def unfinished(self, what: str, exit_code: int) -> Stopped:
        """Return the error for a study that ended early, with how to continue it."""
        runs = {(point.id, seed) for job in self._plan.jobs for point, seed in job.runs}
        left = len(runs - self._store.ended())
        reason = f"{what}: {self._plan.runs - left} of {self._plan.runs} runs are finished and kept"
        return Stopped(reason, exit_code, f"--resume {self._store.folder} runs the others")
