"""Execution of the missing runs of a study by the devices of this machine or of a Ray cluster.

XLA optimizes a program that is partitioned over all devices differently, so that the last digits of
its numbers would depend on the number of devices. Each device therefore executes whole batches of
the program of `experiments.train`.
"""

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from experiments.runs import compilation, interrupt
from experiments.runs.interrupt import Stopped
from experiments.runs.log import say
from experiments.studies import batch, devices
from experiments.studies.batch import Outcome, Progress, Task, Train
from experiments.studies.devices import Budget, Device
from experiments.studies.options import HERE, Cache, Where
from experiments.studies.plan import Job, Plan, count
from experiments.studies.progress import Bar
from experiments.studies.store import SeededPoint, Store, code_version
from experiments.training import spread

_PAUSE = 0.1  # seconds to wait for a call of a thread before looking whether it has ended
_PROGRAMS = 16  # least number of compiled programs to keep


class Engine(Protocol):
    """Devices, each of which trains one batch at a time."""

    devices: Sequence[Device]
    stops: str  # when batches stop after Ctrl-C

    def working(self, plan: Plan, store: Store) -> contextlib.AbstractContextManager[Train]:
        """Return a context with the function that trains batches of a plan."""
        ...


@contextlib.contextmanager
def open_engine(where: Where, cache: Cache) -> Iterator[Engine]:
    """Open the engine that `where` selects, as a context.

    Raises:
      ValueError: the engine is unavailable or has fewer devices.
    """
    if where.on == HERE:
        yield Here(spread.choose_devices(where.device_count), cache, where)
        return
    from experiments.studies import cluster  # needs an optional extra

    with cluster.join(where.on) as joined:
        say(joined.describe())
        from experiments.studies.cluster_running import Remote  # imports Ray

        yield Remote(joined, cache, where)


class Here:
    """The cores or accelerators of this machine.

    Cores share one compiled program; each accelerator has its own.
    """

    stops = "at the next log point"

    def __init__(self, devices: Sequence[Device], cache: Cache, where: Where) -> None:
        self.devices, self._cache, self._every = devices, cache, where.leave_state
        self._programs = batch.Programs(max(_PROGRAMS, len(devices)))

    @contextlib.contextmanager
    def working(self, plan: Plan, store: Store) -> Iterator[Train]:
        """See `Engine`."""
        if devices.is_cpu(plan.devices):  # cores share the host's memory
            budgets = dict.fromkeys(plan.devices, Budget(plan.limit))
        else:
            own = plan.limit // len(plan.devices)
            budgets = {device: Budget(own) for device in plan.devices}
        code = code_version()  # parses files, which threads must not do at the same time

        def train(task: Task, device: Any) -> Outcome | None:
            saved = batch.SavedState(store.folder, task.job, task.runs, code)
            steps, latest = task.job.group.program.schedule.steps, time.monotonic()

            def reached(progress: Progress, state: Any) -> bool:
                nonlocal latest
                done = len(progress.points)
                goes_on = task.reached(steps[done - 1]) or done == len(steps)
                due = time.monotonic() - latest > self._every
                if done < len(steps) and (due or not goes_on):
                    saved.save(progress, state)
                    latest = time.monotonic()
                return goes_on

            progress = batch.train(
                task.job,
                task.runs,
                device,
                self._programs,
                reached,
                budgets[device],
                saved.load(self._programs),
            )
            if progress is None:
                return None
            saved.remove()
            return batch.finished(task.job, task.runs, progress)

        with compilation.cache_programs(self._cache):
            yield train


def carry_out(plan: Plan, store: Store, engine: Engine, bar: Bar | None = None) -> None:
    """Execute the missing runs of a study and store every batch when it ends.

    Args:
      plan: missing runs and devices.
      store: store that receives the results.
      engine: trains the batches.
      bar: progress bar of an enclosing search; by default, a bar for this plan alone.

    Raises:
      Stopped: the user pressed Ctrl-C, or the cluster is lost; finished runs are kept.
    """
    board = _Board(plan, store, bar or Bar(plan.steps, plan.runs))
    try:
        with engine.working(plan, store) as train:
            board.run(train, engine.stops)
    except (KeyboardInterrupt, ConnectionError) as error:
        pressed = isinstance(error, KeyboardInterrupt)
        runs = {(point.id, seed) for job in plan.jobs for point, seed in job.runs}
        ended = len(runs & store.ended())
        raise Stopped(
            f"{'stopped' if pressed else error}: {ended} of {len(runs)} runs are finished and kept",
            interrupt.exit_code(error) if pressed else 1,
            f"--resume {store.folder} runs the others",
        ) from (None if pressed else error)
    finally:
        if bar is None:
            board.bar.close()
        store.write()


def check_failed(store: Store, names: Sequence[str]) -> None:
    """Raise Stopped if there are names of failed runs."""
    if names:
        runs, why = count(len(names), "run"), store.facts["failed"][names[0]]
        reason = f"{runs} failed, such as {names[0]}: {why}"
        raise Stopped(reason, 1, f"--resume {store.folder} runs them again")


class _Board:
    """Queue of pending batches, with a worker thread for each device.

    Worker threads enqueue calls, which the main thread executes, so that only the main thread
    changes the store and the progress bar.
    """

    def __init__(self, plan: Plan, store: Store, bar: Bar) -> None:
        self._plan, self._store, self.bar = plan, store, bar
        self._waiting = {number: list(job.batches) for number, job in enumerate(plan.jobs)}
        self._begun: set[int] = set()
        self._lock, self.stop = threading.Lock(), threading.Event()
        self._calls: queue.Queue[Callable[[], Any]] = queue.Queue()
        self._errors: list[BaseException] = []

    def run(self, train: Train, stops: str) -> None:
        """Train all batches.

        Args:
          train: function that trains a batch on a device.
          stops: when a batch stops after Ctrl-C, for the message.

        Raises:
          KeyboardInterrupt: the user pressed Ctrl-C; the batches have stopped.
          BaseException: the error that stopped a device; the other devices have stopped too.
        """
        threads = [
            threading.Thread(target=self._work, args=(train, number, device), daemon=True)
            for number, device in enumerate(self._plan.devices[: self._plan.batches])
        ]
        try:
            for thread in threads:
                thread.start()
            self._listen(threads)
        except KeyboardInterrupt:
            self.stop.set()
            self.bar.close()
            say(f"stopping {stops}; press Ctrl-C again to stop immediately")
            self._listen(threads)  # keep the batches that end in the meantime
            raise
        finally:
            self.stop.set()
        if self._errors:
            raise self._errors[0]

    def take(self, last: int | None) -> tuple[int, Job, tuple[SeededPoint, ...]] | None:
        """Return the number of a job, the job and its next batch, or None after the last one.

        Args:
          last: number of the device's previous job, whose batches have priority.
        """
        with self._lock:
            left = {number: batches for number, batches in self._waiting.items() if batches}
            if not left or self.stop.is_set():
                return None
            fresh = [number for number in left if number not in self._begun]
            longest = max(left, key=lambda number: len(left[number]))
            number = last if last in left else (fresh[0] if fresh else longest)
            self._begun.add(number)
            return number, self._plan.jobs[number], left[number].pop(0)

    def _listen(self, threads: Sequence[threading.Thread]) -> None:
        """Execute the calls of the worker threads until all of them have ended."""
        while any(thread.is_alive() for thread in threads) or not self._calls.empty():
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout=_PAUSE)()

    def _work(self, train: Train, number: int, device: Device) -> None:
        """Train batches on a device until the queue is empty."""

        def tell(what: str | None, steps: int = 0) -> None:
            self._calls.put(lambda: self.bar.works_on(number, what, steps))

        last = None
        try:
            while (taken := self.take(last)) is not None:
                last, job, runs = taken
                tell(job.group.name)
                try:
                    outcome = train(self._task(tell, job, runs), device)
                except (RuntimeError, ValueError) as error:  # such as running out of memory
                    outcome = batch.failed([*runs, *self._drop(last)], str(error))
                if outcome is not None:
                    self._calls.put(functools.partial(self._keep, outcome))
        except BaseException as error:
            self._errors.append(error)
            self.stop.set()
        tell(None)

    def _task(
        self, tell: Callable[[str, int], None], job: Job, runs: tuple[SeededPoint, ...]
    ) -> Task:
        """Return a batch as a task that reports its new agent steps."""
        before = 0

        def reached(steps: int) -> bool:
            nonlocal before
            tell(job.group.name, (steps - before) * len(runs))
            before = steps
            return not self.stop.is_set()

        return Task(job, runs, reached)

    def _drop(self, number: int) -> list[SeededPoint]:
        """Remove and return all pending runs of a job with a program that cannot run."""
        with self._lock:
            batches, self._waiting[number] = self._waiting[number], []
        return [run for runs in batches for run in runs]

    def _keep(self, outcome: Outcome) -> None:
        """Store the outcome of a batch."""
        if outcome.failures:
            self._store.fail(outcome.failures)
        if outcome.results:
            self._store.add(outcome.results, outcome.cost)
        self.bar.ended(len(outcome.results) + len(outcome.failures), len(outcome.failures))
