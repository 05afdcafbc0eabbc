"""Execution of a sweep on this machine: every core or accelerator takes batches of runs in turn.

XLA optimizes a program that is partitioned over all devices differently, so that the last digits of
its numbers would depend on the number of devices. Each batch therefore runs the same program as
`experiments.train`. Cores share one compiled program; each accelerator has its own.
"""

import queue
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.runs.log import say
from experiments.studies import batch, devices
from experiments.studies.batch import Outcome, Program, Programs, Progress, Reached, SavedState
from experiments.studies.plan import Job, Plan
from experiments.studies.progress import Bar, Keeper
from experiments.studies.store import SeededPoint, Store, code_version


class _News(NamedTuple):
    """Report of a device to the main thread."""

    device: int
    what: str | None = None  # current work; None if the device is idle
    steps: int = 0  # new agent steps, summed over the runs of the batch
    outcome: Outcome | None = None  # a batch that has ended
    error: BaseException | None = None  # an error that stops the device


def carry_out(
    plan: Plan,
    store: Store,
    programs: Programs,
    every: float = 300.0,
    bar: Bar | None = None,
) -> None:
    """Execute the missing runs of a sweep and store every batch when it ends.

    Args:
      plan: missing runs and devices.
      store: store that receives the results.
      programs: cache of compiled programs.
      every: seconds between two saved states of a batch, from which an interrupted study resumes.
      bar: progress bar of an enclosing search, which also handles failed runs; by default, a bar
        for this plan alone.

    Raises:
      Stopped: the user pressed Ctrl-C, or runs failed; finished runs are kept.
    """
    board = _Board(plan, programs, store.folder, every)
    threads = [
        threading.Thread(target=_work, args=(board, number, device), daemon=True)
        for number, device in enumerate(plan.devices[: plan.batches])
    ]
    with Keeper(plan, store, bar) as keeper:
        try:
            for thread in threads:
                thread.start()
            _listen(board, keeper, keeper.bar, len(threads))
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
        finally:
            board.stop.set()


class _Board:
    """Queue of pending batches, from which the devices take their work."""

    def __init__(self, plan: Plan, programs: Programs, folder: Path, every: float) -> None:
        self.folder, self.every = folder, every
        self.code = code_version()  # parses files, which threads must not do at the same time
        self._lock = threading.Lock()
        self._waiting = {number: list(job.batches) for number, job in enumerate(plan.jobs)}
        self._begun: set[int] = set()
        self._programs = [Program(job, programs) for job in plan.jobs]
        here = [device for device in plan.devices if isinstance(device, jax.Device)]
        if devices.is_cpu(here):  # cores share the host's memory
            self._memory = dict.fromkeys(here, devices.Budget(plan.limit))
        else:
            self._memory = {each: devices.Budget(plan.limit // len(here)) for each in here}
        self.news: queue.Queue[_News] = queue.Queue()
        self.stop = threading.Event()

    def take(self, last: int | None) -> tuple[int, Program, tuple[SeededPoint, ...]] | None:
        """Return the next batch, its program and the number of its job, or None after the last one.

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
            return number, self._programs[number], left[number].pop(0)

    def budget(self, device: jax.Device) -> devices.Budget:
        """Return the memory budget shared by the batches on a device."""
        return self._memory[device]

    def drop(self, number: int) -> list[tuple[SeededPoint, ...]]:
        """Remove and return all pending batches of a job, whose program can't run."""
        with self._lock:
            batches, self._waiting[number] = self._waiting[number], []
            return batches


def _work(board: _Board, number: int, device: jax.Device) -> None:
    """Train batches on a device until the queue is empty."""
    last = None
    try:
        while (taken := board.take(last)) is not None:
            last, program, runs = taken
            job = program.job
            board.news.put(_News(number, job.group.name))
            try:
                saved = batch.SavedState(board.folder, job, runs, board.code)
                reached = _reporter(board, number, job, len(runs), saved)
                budget = board.budget(device)
                progress = batch.train(program, runs, device, reached, budget, saved.load())
                outcome = batch.ended(job, runs, progress) if progress else Outcome([], [], {})
                if progress:
                    saved.remove()
            except (RuntimeError, ValueError) as error:  # such as running out of memory
                lost = [run for each in (runs, *board.drop(last)) for run in each]
                outcome = batch.failed(lost, str(error))
            board.news.put(_News(number, outcome=outcome))
    except BaseException as error:
        board.news.put(_News(number, error=error))
    finally:
        board.news.put(_News(number))


def _reporter(board: _Board, number: int, job: Job, runs: int, saved: SavedState) -> Reached:
    """Return a callback that reports a batch's log points and returns whether to continue."""
    steps = job.group.program.schedule.steps
    latest = [time.monotonic()]

    def reached(progress: Progress, state: Any) -> bool:
        done = len(progress.points)
        stops = board.stop.is_set()
        if done < len(steps) and (stops or time.monotonic() - latest[0] > board.every):
            saved.save(progress, state)
            latest[0] = time.monotonic()
        new = steps[done - 1] - (steps[done - 2] if done > 1 else 0)
        board.news.put(_News(number, job.group.name, new * runs))
        return not stops or done == len(steps)

    return reached


def _listen(board: _Board, keeper: Keeper, bar: Bar, at_work: int) -> None:
    """Store the results that devices report until all devices have finished.

    Raises:
      BaseException: the error that stopped a device.
    """
    while at_work:
        news = board.news.get()
        if news.error is not None:
            raise news.error
        bar.works_on(news.device, news.what)
        if news.steps:
            bar.advance(news.steps)
        if news.outcome is not None:
            keeper.keep(news.outcome)
        elif news.what is None:
            at_work -= 1
