"""Storage of finished runs and progress display, shared by all engines."""

from types import TracebackType

from experiments.runs import interrupt
from experiments.runs.interrupt import Stopped
from experiments.studies.batch import Outcome
from experiments.studies.plan import Plan
from experiments.studies.progress import Bar
from experiments.studies.store import Store


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
