"""Execution of the missing runs of a study by the devices of this machine or of a Ray cluster.

There is one queue of batches of runs. Each device executes whole compiled programs. If a program
were partitioned over several devices, XLA would optimize it differently, and the last digits of its
numbers would depend on the number of devices.
"""

import contextlib
import functools
import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd

from experiments.environments.host import EnvironmentFailed
from experiments.runs import compilation, interrupt
from experiments.runs.interrupt import Stopped, TimeOver
from experiments.runs.log import Log, Row, mean_over_seeds, say, show
from experiments.statistics.summaries import diverged_seeds
from experiments.studies import batch, devices
from experiments.studies.batch import Assignment, BatchResult, Train, decided_by
from experiments.studies.checkpoints import Checkpoint, Metrics, Progress
from experiments.studies.devices import Budget, Unit
from experiments.studies.options import HERE, Cache, Where
from experiments.studies.plan import Job, Plan, count
from experiments.studies.progress import Bar
from experiments.studies.store import KEYS, SeededPoint, Store, code_version
from experiments.training.drivers import Programs

_PROGRAMS = 16  # least number of compiled programs to keep
_PAUSE = 0.05  # seconds between two checks for signals, and for results to write


class Engine(Protocol):
    """Units of devices, each of which trains one batch of runs at a time."""

    units: Sequence[Unit]
    stops: str  # when batches stop after Ctrl-C

    def working(self, plan: Plan, store: Store) -> contextlib.AbstractContextManager[Train]:
        """Return a context manager that yields the function that trains batches of a plan."""
        ...


@contextlib.contextmanager
def open_engine(where: Where, cache: Cache, keep: bool = False) -> Iterator[Engine]:
    """Open the engine that `where` selects, as a context.

    Args:
      where: place and limits of the execution.
      cache: folder of compiled programs, "off", or None for the default.
      keep: whether to keep the last checkpoint of every batch of runs.

    Raises:
      ValueError: the engine is unavailable, or has fewer devices than `where` asks for.
    """
    if where.on == HERE:
        with compilation.cache_programs(cache):
            yield Here(devices.choose(where.device_count), where, keep)
        return
    from experiments.studies import cluster  # needs an optional extra

    with cluster.join(where.on) as joined:
        say(joined.describe())
        from experiments.studies.cluster_running import Remote  # imports Ray

        yield Remote(joined, cache, where)


class Here:
    """Trains runs on the cores or accelerators of this machine.

    Cores share one compiled program; each accelerator has a compiled program of its own.
    """

    stops = "at the next log point"

    def __init__(self, chosen: Sequence[Any], where: Where, keep: bool = False) -> None:
        self.units = [(device,) for device in chosen]
        self._every, self._keep = where.checkpoint_every, keep
        self._programs = Programs(max(_PROGRAMS, len(chosen)))

    @contextlib.contextmanager
    def working(self, plan: Plan, store: Store) -> Iterator[Train]:
        """See `Engine.working`."""
        code = code_version()  # parses files, which threads must not do at the same time
        if devices.is_cpu(plan.units[0][0]):  # cores share the host's memory
            budgets = dict.fromkeys(plan.units, Budget(plan.limit))
        else:
            own = plan.limit // sum(map(len, plan.units))
            budgets = {unit: Budget(own) for unit in plan.units}

        def train(task: Assignment, unit: Any) -> BatchResult | None:
            driver = batch.driver_of(task.job, task.runs, unit, self._programs)
            driver.stop = task.stopped
            checkpoint = Checkpoint(store.folder, *decided_by(task.job, task.runs))
            progress = batch.train(
                driver, budgets[unit], checkpoint, task.reached,
                code=code, every=self._every, keep=self._keep,
            )  # fmt: skip
            if progress is None:
                return None
            outcome = batch.finished(task.job, task.runs, progress)
            return outcome if self._keep else outcome._replace(remove=checkpoint.remove)

        yield train


def carry_out(
    plan: Plan,
    store: Store,
    engine: Engine,
    logs: Sequence[Log] = (),
    diverged: str = "",
    deadline: float = math.inf,
) -> None:
    """Execute the missing runs of a study; store the results of each batch of runs when it ends.

    Args:
      plan: missing runs and devices.
      store: store that receives the results.
      engine: trains the batches.
      logs: destinations of the metrics at log points, for a plan with a single batch.
      diverged: name of the option that stops the batch if a seed diverges, for the message; ""
        means that the batch goes on.
      deadline: value of `time.monotonic` after which batches stop as after Ctrl-C.

    Raises:
      Stopped: the user pressed Ctrl-C, a seed diverged, or the cluster is lost; finished runs are
        kept.
      TimeOver: the deadline passed before all runs ended.
    """
    board = _Board(plan, store, logs, diverged, deadline)
    try:
        with engine.working(plan, store) as train:
            board.run(train, "between two steps" if plan.on_host else engine.stops)
    except (KeyboardInterrupt, ConnectionError) as error:
        pressed = isinstance(error, KeyboardInterrupt)
        runs = {(point.id, seed) for job in plan.jobs for point, seed in job.runs}
        ended = len(runs & store.ended())
        kept = f": {ended} of {len(runs)} runs are finished and kept"
        if plan.batches == 1 and board.step:
            kept = f" at {board.step:,} of {plan.jobs[0].steps:,} agent steps"
        raise Stopped(
            f"{'stopped' if pressed else error}{kept}",
            interrupt.exit_code(error) if pressed else 1,
            f"--resume {store.folder} continues",
        ) from (None if pressed else error)
    if board.left and time.monotonic() >= deadline:
        raise TimeOver


def check_failed(store: Store) -> None:
    """Raise Stopped if runs have failed."""
    if names := list(store.facts["failed"]):
        runs, why = count(len(names), "run"), store.facts["failed"][names[0]]
        reason = f"{runs} failed, such as {names[0]}: {why}"
        raise Stopped(reason, 1, f"--resume {store.folder} runs them again")


class _Board:
    """Queue of pending batches of runs, with a worker for each unit of devices.

    Workers are threads, except that environments on the host step in the main thread, as some
    environments require. Workers enqueue calls that change the store and write logs. One further
    thread executes the calls: signals interrupt only the main thread, so no call is lost.
    """

    def __init__(
        self, plan: Plan, store: Store, logs: Sequence[Log], diverged: str, deadline: float
    ) -> None:
        self._plan, self._store, self._logs, self._stops = plan, store, logs, diverged
        self._deadline, self.left = deadline, plan.runs  # runs that have not ended
        self._bar = Bar(plan.steps, plan.runs)
        self._waiting = {number: list(job.batches) for number, job in enumerate(plan.jobs)}
        self._begun: set[int] = set()
        self._lock, self._stopped = threading.Lock(), False
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._errors: list[BaseException] = []
        self._diverged: set[int] = set()
        self._removed: list[Callable[[], None]] = []  # delete checkpoints of runs in the store
        self.step = 0  # agent steps of each run of the latest batch

    def run(self, train: Train, stops: str) -> None:
        """Train all batches.

        Args:
          train: function that trains a batch on a unit of devices.
          stops: how soon a batch stops after Ctrl-C, for the message, such as "within seconds".

        Raises:
          KeyboardInterrupt: the user pressed Ctrl-C; the batches have stopped.
          BaseException: the error that stopped a unit; the other units have stopped too.
        """
        listener = threading.Thread(target=self._listen, daemon=True)
        units = self._plan.units[: self._plan.batches]
        threads = [] if self._plan.on_host else [
            threading.Thread(target=self._work, args=(train, *unit), daemon=True)
            for unit in enumerate(units)
        ]  # fmt: skip

        def interrupted() -> None:
            self._stopped = True
            self._calls.put(lambda: self._say_stopping(stops))

        with interrupt.deferred(interrupted):
            try:
                for thread in (listener, *threads):
                    thread.start()
                if self._plan.on_host:
                    self._work(train, 0, units[0])
                while any(thread.is_alive() for thread in threads):
                    time.sleep(_PAUSE)
            finally:
                self._stopped = True
                self._calls.put(None)
                listener.join()  # keep what has ended
                self._bar.close()
            if self._errors:
                raise self._errors[0]

    @property
    def stopped(self) -> bool:
        """Whether batches should stop."""
        return self._stopped or time.monotonic() >= self._deadline

    def _say_stopping(self, when: str) -> None:
        """Print that the user interrupted the batches."""
        self._bar.close()
        say(f"stopping {when}, with a checkpoint; press Ctrl-C again to stop immediately")

    def _remove(self, written: bool) -> None:
        """Delete the checkpoints of runs that are on disk."""
        while written and self._removed:
            self._removed.pop()()

    def take(self, last: int | None) -> tuple[int, Job, tuple[SeededPoint, ...]] | None:
        """Return the number of a job, the job and its next batch, or None after the last one.

        Args:
          last: number of the unit's previous job, whose batches have priority.
        """
        with self._lock:
            left = {number: batches for number, batches in self._waiting.items() if batches}
            if not left or self.stopped:
                return None
            fresh = [number for number in left if number not in self._begun]
            longest = max(left, key=lambda number: len(left[number]))
            number = last if last in left else (fresh[0] if fresh else longest)
            self._begun.add(number)
            return number, self._plan.jobs[number], left[number].pop(0)

    def _listen(self) -> None:
        """Execute calls until None comes, even after an error; then write tables and close logs."""
        while (call := self._next()) is not None:
            self._execute(call)
        for call in (self._write, *(log.close for log in self._logs)):
            self._execute(call)

    def _next(self) -> Callable[[], Any] | None:
        """Return the next call of a worker, or a call that writes the tables if none comes soon."""
        with contextlib.suppress(queue.Empty):
            return self._calls.get(timeout=_PAUSE)
        return (lambda: None) if self._errors else self._flush

    def _execute(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:  # a full disk, or a seed that diverged
            self._errors.append(error)
            self._stopped = True

    def _write(self) -> None:
        """Write the tables."""
        self._store.write()
        self._remove(True)

    def _flush(self) -> None:
        """Write the tables if they lack results and the last write was long enough ago."""
        self._remove(self._store.flush())

    def _work(self, train: Train, number: int, unit: Unit) -> None:
        """Train batches on a unit until the queue is empty."""

        def tell(what: str | None, steps: int = 0) -> None:
            self._calls.put(lambda: self._bar.works_on(number, what, steps))

        last = None
        try:
            while (taken := self.take(last)) is not None:
                last, job, runs = taken
                tell(job.group.name)
                try:
                    outcome = train(self._task(tell, job, runs), unit)
                except EnvironmentFailed as error:
                    outcome = batch.failed(runs, str(error))
                    self._explain(error)
                except (RuntimeError, ValueError) as error:
                    why = compilation.out_of_memory(error) or str(error)
                    outcome = batch.failed([*runs, *self._drop(last)], why)
                    if isinstance(error, RuntimeError) and why == str(error):  # a bug, of XLA or us
                        self._explain(error)
                if outcome is not None:
                    self._calls.put(functools.partial(self._keep, outcome))
        except BaseException as error:
            self._errors.append(error)
            self._stopped = True
        tell(None)

    def _explain(self, error: Exception) -> None:
        """Print an error in full; the table of failures contains only its first words."""
        text = "".join(traceback.format_exception(error))
        self._calls.put(functools.partial(show, text, sys.stderr))

    def _task(
        self, tell: Callable[[str, int], None], job: Job, runs: tuple[SeededPoint, ...]
    ) -> Assignment:
        """Return a batch of runs as an assignment, which reports its steps and log points."""
        before, logged = 0, None

        def reached(steps: int, progress: Progress | None) -> bool:
            nonlocal before, logged
            tell(job.group.name, (steps - before) * len(runs))
            before = steps
            if self._logs and progress is not None:
                points = progress.points[logged or 0 :]
                call = self._begin if logged is None else self._log
                known = len(progress.points) - len(points)
                self._calls.put(functools.partial(call, job, runs, known, list(points)))
                logged = len(progress.points)
            return not self.stopped

        return Assignment(job, runs, reached, lambda: self.stopped)

    def _drop(self, number: int) -> list[SeededPoint]:
        """Remove and return all pending runs of a job with a program that cannot run."""
        with self._lock:
            batches, self._waiting[number] = self._waiting[number], []
        return [run for runs in batches for run in runs]

    def _keep(self, outcome: BatchResult) -> None:
        """Store the outcome of a batch."""
        if outcome.failures:
            self._store.fail(outcome.failures)
        if outcome.results:
            self._store.add(outcome.results, outcome.cost, outcome.code)
        self._removed.append(outcome.remove)
        self._flush()
        ended = len(outcome.results) + len(outcome.failures)
        self.left -= ended
        self._bar.ended(ended, len(outcome.failures))

    def _begin(
        self, job: Job, runs: Sequence[SeededPoint], known: int, points: Sequence[Metrics]
    ) -> None:
        """Begin the logs with the log points of ended runs and of a batch's checkpoint."""
        earlier = [*ended_rows(self._store), *_rows(job, runs, known, points)]
        for log in self._logs:
            log.begin(earlier)

    def _log(
        self, job: Job, runs: Sequence[SeededPoint], known: int, points: Sequence[Metrics]
    ) -> None:
        """Log new log points."""
        for rows in _rows(job, runs, known, points):
            self.step = rows[0]["step"]
            for log in self._logs:
                log.log(rows)
            returns = mean_over_seeds(rows).get("eval_return")
            self._bar.shows("" if returns is None else f"return {returns:.1f}")
            self._check_divergence(job, rows)

    def _check_divergence(self, job: Job, rows: Sequence[Row]) -> None:
        """Print a line about new diverged seeds, or raise Stopped if divergence stops the run."""
        seeds = set(diverged_seeds(pd.DataFrame(rows))) - self._diverged
        if not seeds:
            return
        self._diverged |= seeds
        which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"
        message = (
            f"{job.group.points[0].label}, {which}: no loss or no gradient was finite before the "
            f"log point at agent step {rows[0]['step']:,}: the agent has diverged, and its results "
            "do not measure the method: lower its step size"
        )
        if self._stops:
            raise Stopped(f"{message} (stopped by {self._stops})", 1)
        say(message)


def ended_rows(store: Store) -> list[list[dict[str, Any]]]:
    """Return a list of rows for each log point, with one row for each run that is complete now.

    Runs that are incomplete have no row at any log point.
    """
    if store.table.empty:
        return []
    metrics = store.table.drop(columns=["point", *KEYS, *store.settings, "diverged"])
    exact = {name: np.float32 for name in metrics if name not in ("seed", "step")}
    points = []
    for _, rows in metrics.astype(exact).groupby("step"):
        columns = {str(name): column.to_numpy() for name, column in rows.items()}  # stays float32
        points.append([{n: values[i] for n, values in columns.items()} for i in range(len(rows))])
    return points


def _rows(
    job: Job, runs: Sequence[SeededPoint], known: int, points: Sequence[Metrics]
) -> list[list[dict[str, Any]]]:
    """Return, for each of the log points, one row per run; `known` log points came before."""
    steps = job.group.schedule.steps
    return [
        [
            {
                "seed": seed, "step": steps[known + at],
                **{name: metrics[name][place] for name in metrics if name != "fault"},
            }
            for place, (_, seed) in enumerate(runs)
        ]
        for at, metrics in enumerate(points)
    ]  # fmt: skip
