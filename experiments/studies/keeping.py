"""What every way of carrying out a sweep shares: runs are kept as they end, and said to be."""

from types import TracebackType

from experiments.runs import interrupt
from experiments.runs.run import Stopped
from experiments.studies.plan import Plan
from experiments.studies.progress import Bar
from experiments.studies.store import Store
from experiments.studies.waves import Wave


class Keeper:
    """Puts what ends into a sweep's table, with one bar for the whole.

    As a context, it leaves a table with all that has ended, whatever happens; Ctrl-C, and runs that
    failed, end it with `Stopped`.
    """

    def __init__(self, plan: Plan, store: Store, bar: Bar | None = None) -> None:
        """Make it.

        Args:
          plan: what is to run.
          store: where it goes.
          bar: that of a larger whole, which stays, and whose affair it is if runs fail; None: the
            plan is all there is.
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
            raise Stopped(self.unfinished("stopped"), interrupt.exit_code(error)) from None
        failures = self._store.facts["failed"]
        if error is None and failures and self._is_all:
            lane, why = next(iter(failures.items()))
            line = f"{len(failures)} runs failed, such as {lane}: {why}"
            raise Stopped(self.unfinished(line), 1)

    def keep(self, wave: Wave) -> None:
        """Keep what has come of a wave."""
        if wave.failures:
            self._store.fail(wave.failures)
        if wave.results:
            self._store.add(wave.results, wave.cost)
        self.bar.ended(len(wave.results) + len(wave.failures), len(wave.failures))

    def unfinished(self, what: str) -> str:
        """Return a line that says why a sweep ends early, and how it goes on."""
        lanes = {(point.id, seed) for job in self._plan.jobs for point, seed in job.lanes}
        left = len(lanes - self._store.ended())
        return (
            f"{what}: {self._plan.runs - left} of {self._plan.runs} runs have ended and are kept: "
            f"--resume {self._store.folder} runs the others"
        )
