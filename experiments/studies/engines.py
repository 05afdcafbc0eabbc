"""Execution of the missing runs of a study by the devices of this machine or of a Ray cluster.

XLA optimizes a program that is partitioned over all devices differently, so that the last digits of
its numbers would depend on the number of devices. Each device therefore takes whole batches, and
runs the same program as `experiments.train`.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from experiments.runs import compilation
from experiments.runs.log import say
from experiments.studies import batch, devices
from experiments.studies.batch import Outcome, Progress
from experiments.studies.devices import Budget, Device
from experiments.studies.options import HERE, Where
from experiments.studies.plan import Job, Plan
from experiments.studies.progress import Bar, Keeper
from experiments.studies.store import SeededPoint, Store, code_version
from experiments.training import spread

_PROGRAMS = 16  # least number of compiled programs to keep
Cache = Path | Literal["off"] | None  # directory of compiled programs


class Task(NamedTuple):
    """A batch of runs that a device trains."""

    job: Job
    runs: tuple[SeededPoint, ...]
    reached: Callable[[int], bool]  # takes the agent steps of each run; returns whether to go on


# Trains a task on a device; returns None if it was told to stop. A RuntimeError or ValueError fails
# all batches of the job.
Train = Callable[[Task, Any], Outcome | None]


class Engine(Protocol):
    """Devices, each of which trains one batch at a time."""

    devices: Sequence[Device]

    def working(self, plan: Plan, store: Store) -> contextlib.AbstractContextManager[Train]:
        """Return a context with the function that trains batches of a plan."""
        ...


@contextlib.contextmanager
def opened(where: Where, cache: Cache) -> Iterator[Engine]:
    """Open the engine that `where` selects, as a context.

    Raises:
      ValueError: the engine is unavailable or has fewer devices.
    """
    if where.on == HERE:
        yield Here(spread.chosen(where.device_count), cache, where)
        return
    from experiments.studies import cluster  # needs an optional extra

    with cluster.joined(where.on) as joined:
        say(joined.describe())
        from experiments.studies.cluster_running import Remote  # imports Ray

        yield Remote(joined, cache, where)


class Here:
    """The cores or accelerators of this machine.

    Cores share one compiled program; each accelerator has its own.
    """

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
                task.job, task.runs, device, self._programs, reached, budgets[device], saved.load()
            )
            if progress is None:
                return None
            saved.remove()
            return batch.ended(task.job, task.runs, progress)

        with compilation.kept(self._cache):
            yield train


class _News(NamedTuple):
    """Report of a device to the main thread."""

    device: int
    what: str | None = None  # current work; None if the device is idle
    steps: int = 0  # new agent steps, summed over the runs of the batch
    outcome: Outcome | None = None  # a batch that has ended
    error: BaseException | None = None  # an error that stops the device


def carry_out(plan: Plan, store: Store, engine: Engine, bar: Bar | None = None) -> None:
    """Execute the missing runs of a study and store every batch when it ends.

    Args:
      plan: missing runs and devices.
      store: store that receives the results.
      engine: trains the batches.
      bar: progress bar of an enclosing search, which also handles failed runs; by default, a bar
        for this plan alone.

    Raises:
      Stopped: the user pressed Ctrl-C, or runs failed; finished runs are kept.
    """
    board = _Board(plan)
    with Keeper(plan, store, bar) as keeper, engine.working(plan, store) as train:
        threads = [
            threading.Thread(target=_work, args=(board, train, number, device), daemon=True)
            for number, device in enumerate(plan.devices[: plan.batches])
        ]
        try:
            for thread in threads:
                thread.start()
            _listen(board, keeper, len(threads))
        except KeyboardInterrupt:
            board.stop.set()
            keeper.bar.close()
            say("stopping at the next log point; press Ctrl-C again to stop immediately")
            for thread in threads:
                thread.join()
            while not board.news.empty():  # keep the batches that ended in the meantime
                outcome = board.news.get().outcome
                if outcome is not None:
                    keeper.keep(outcome)
            raise
        except ConnectionError as error:
            raise keeper.unfinished(str(error), 1) from error
        finally:
            board.stop.set()


class _Board:
    """Queue of pending batches, from which the devices take their work."""

    def __init__(self, plan: Plan) -> None:
        self._lock, self._jobs = threading.Lock(), plan.jobs
        self._waiting = {number: list(job.batches) for number, job in enumerate(plan.jobs)}
        self._begun: set[int] = set()
        self.news: queue.Queue[_News] = queue.Queue()
        self.stop = threading.Event()

    def take(self, last: int | None) -> tuple[int, Job, tuple[SeededPoint, ...]] | None:
        """Return the number of a job, the job and its next batch, or None after the last one.

        Args:
          last: number of the job that the device worked on before; its batches come first.
        """
        with self._lock:
            left = {number: batches for number, batches in self._waiting.items() if batches}
            if not left or self.stop.is_set():
                return None
            fresh = [number for number in left if number not in self._begun]
            longest = max(left, key=lambda number: len(left[number]))
            number = last if last in left else (fresh[0] if fresh else longest)
            self._begun.add(number)
            return number, self._jobs[number], left[number].pop(0)

    def drop(self, number: int) -> list[tuple[SeededPoint, ...]]:
        """Remove and return all pending batches of a job, whose program can't run."""
        with self._lock:
            batches, self._waiting[number] = self._waiting[number], []
            return batches


def _work(board: _Board, train: Train, number: int, device: Device) -> None:
    """Train batches on a device until the queue is empty."""
    last = None
    try:
        while (taken := board.take(last)) is not None:
            last, job, runs = taken
            board.news.put(_News(number, job.group.name))
            try:
                outcome = train(Task(job, runs, _reporter(board, number, job, len(runs))), device)
            except (RuntimeError, ValueError) as error:  # such as running out of memory
                lost = [run for each in (runs, *board.drop(last)) for run in each]
                outcome = batch.failed(lost, str(error))
            board.news.put(_News(number, outcome=outcome or Outcome([], [], {})))
    except BaseException as error:
        board.news.put(_News(number, error=error))
    finally:
        board.news.put(_News(number))


def _reporter(board: _Board, number: int, job: Job, runs: int) -> Callable[[int], bool]:
    """Return the function that a task calls with the agent steps of each of its runs."""
    before = 0

    def reached(steps: int) -> bool:
        nonlocal before
        board.news.put(_News(number, job.group.name, (steps - before) * runs))
        before = steps
        return not board.stop.is_set()

    return reached


def _listen(board: _Board, keeper: Keeper, at_work: int) -> None:
    """Store the results that devices report until all devices have finished.

    Raises:
      BaseException: the error that stopped a device.
    """
    while at_work:
        news = board.news.get()
        if news.error is not None:
            raise news.error
        keeper.bar.works_on(news.device, news.what)
        if news.steps:
            keeper.bar.advance(news.steps)
        if news.outcome is not None:
            keeper.keep(news.outcome)
        elif news.what is None:
            at_work -= 1
