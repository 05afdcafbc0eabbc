"""Execution of a sweep on a Ray cluster, with one task per batch of runs.

A task runs the same program, at the same width and with the same flags and number of threads, as a
device of this machine. If its worker or node dies, Ray restarts the task elsewhere, and it resumes
from the latest state saved in `Notes` and produces the same numbers.
"""

import contextlib
import socket
import time
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from experiments import environments
from experiments.runs import compilation, outside
from experiments.runs.log import say
from experiments.studies import batch, cluster, cluster_remote, devices, programs, store
from experiments.studies.batch import Program, Progress
from experiments.studies.cluster import Cluster
from experiments.studies.grid import Place, Point
from experiments.studies.plan import Job, Plan
from experiments.studies.progress import Bar, Keeper
from experiments.studies.store import SeededPoint, Store

_DEATHS = 5  # restarts of a batch after the death of its worker
_PAUSE = 1.0  # seconds between two reads of the progress of the batches
_SHARE = 20  # least pause between two saved states, as a multiple of the time to save one
Cache = Path | Literal["off"] | None


class Sent(NamedTuple):
    """Input from which a worker makes the program of a job."""

    key: tuple[str, int]  # unique identifier of the job
    point: Point  # first point of its group
    traced: tuple[Place, ...]
    width: int
    code: str  # version of the code
    cache: Cache  # directory of compiled programs
    every: float  # seconds between two saved states


class Came(NamedTuple):
    """Result that a worker returns."""

    progress: Progress | None  # None if the batch failed
    why: str
    node: str
    began: int  # number of starts of the batch
    first: int  # log points in the state that an earlier worker saved


class _Task(NamedTuple):
    number: int
    job: int
    runs: tuple[SeededPoint, ...]


def carry_out(
    plan: Plan,
    results: Store,
    joined: Cluster,
    cache: Cache,
    every: float,
    bar: Bar | None = None,
) -> None:
    """Execute the missing runs of a sweep and store every batch when it ends.

    Args:
      plan: plan over the cluster's slots.
      results: store that receives the results.
      joined: the cluster.
      cache: directory in which workers keep compiled programs.
      every: seconds after which a batch saves its state at the next log point.
      bar: progress bar of an enclosing search, which also handles failed runs; by default, a bar
        for this plan alone.

    Raises:
      Stopped: the user pressed Ctrl-C, or runs failed; finished runs are kept.
    """
    results.facts["versions"]["device"] = plan.devices[0].kind
    with Keeper(plan, results, bar) as keeper:
        engine = _Engine(plan, joined, cache, every)
        try:
            while engine.running or engine.waiting:
                engine.submit()
                for outcome in engine.ended(keeper.bar):
                    keeper.keep(outcome)
                engine.show(keeper.bar)
        except KeyboardInterrupt:
            keeper.bar.close()
            for outcome in engine.ended(keeper.bar, wait=0):
                keeper.keep(outcome)
            raise
        except (ConnectionError, ray.exceptions.RayError) as error:
            line = f"lost the cluster at {joined.address} ({cluster.first_line(error)})"
            raise keeper.unfinished(line, 1) from error
        finally:
            engine.cancel()


class _Engine:
    """Pending batches, and those submitted to Ray."""

    def __init__(self, plan: Plan, joined: Cluster, cache: Cache, every: float) -> None:
        self._plan, sweep = plan, uuid.uuid4().hex
        self.waiting = deque(
            _Task(number, job, runs)
            for number, (job, runs) in enumerate(
                (job, runs) for job, own in enumerate(plan.jobs) for runs in own.batches
            )
        )
        self._sent = [
            ray.put(
                Sent(
                    (sweep, number), job.group.points[0], job.group.traced, job.width,
                    store.code_version(), cache, every,
                )
            )
            for number, job in enumerate(plan.jobs)
        ]  # fmt: skip
        self.running: dict[Any, _Task] = {}
        self._work = ray.remote(**_needs(joined))(work)
        ray.cloudpickle.register_pickle_by_value(cluster_remote)
        here = NodeAffinitySchedulingStrategy(_own_node(), soft=False)
        self._notes = ray.remote(num_cpus=0, scheduling_strategy=here)(
            cluster_remote.Notes
        ).remote()
        self._shown: dict[int, int] = {}
        self._began: dict[int, int] = {}

    def submit(self) -> None:
        """Submit batches to Ray in order until every slot has one."""
        while self.waiting and len(self.running) < len(self._plan.devices):
            task = self.waiting.popleft()
            reference = self._work.remote(self._sent[task.job], task.runs, task.number, self._notes)
            self.running[reference] = task

    def ended(self, bar: Bar, wait: float = _PAUSE) -> list[batch.Outcome]:
        """Return the batches that have ended, after waiting up to `wait` seconds for the first."""
        if not self.running:
            return []
        done, _ = ray.wait(list(self.running), num_returns=1, timeout=wait)
        if done:  # and all others that have ended by now
            done, _ = ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
        ended = []
        for reference in done:
            task = self.running.pop(reference)
            self._advance(bar, task, self._plan.jobs[task.job].steps)
            bar.works_on(task.number, None)
            ended.append(self._outcome(reference, task))
        return ended

    def show(self, bar: Bar) -> None:
        """Show the progress of the batches, and report those that were restarted."""
        steps, began = ray.get(self._notes.read.remote())
        for task in self.running.values():
            if task.number not in steps:
                continue
            name, now = self._plan.jobs[task.job].group.name, steps[task.number]
            bar.works_on(task.number, name)
            self._advance(bar, task, now)
            times = began[task.number]
            self._note_deaths(task, times, now)

    def _note_deaths(self, task: _Task, times: int, now: int) -> None:
        """Report a batch that was restarted since the last call, from step `now`."""
        if times > self._began.get(task.number, 1):
            name = self._plan.jobs[task.job].group.name
            say(f"{name}: a worker died, and another one resumes from step {now:,}")
        self._began[task.number] = times

    def _advance(self, bar: Bar, task: _Task, now: int) -> None:
        """Record the agent steps that each run of a task has taken."""
        before = self._shown.get(task.number, 0)
        if now != before:
            bar.advance((now - before) * len(task.runs))
        self._shown[task.number] = now

    def cancel(self) -> None:
        """Cancel all pending and running batches."""
        with contextlib.suppress(Exception):  # Ray raises a plain Exception if the cluster is lost
            for reference in self.running:
                ray.cancel(reference, force=True)
            ray.kill(self._notes)
        self.waiting.clear()
        self.running.clear()

    def _outcome(self, reference: Any, task: _Task) -> batch.Outcome:
        """Return the outcome of a task that has ended."""
        job = self._plan.jobs[task.job]
        try:
            came: Came = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # such as a module missing on a node, or a bug
            return self._failed(task, cluster.first_line(error))
        except ray.exceptions.RayError as error:
            return batch.failed(task.runs, f"its workers died ({cluster.first_line(error)})")
        if came.progress is None:
            return self._failed(task, f"on {came.node}: {came.why}")
        self._notes.forget.remote(task.number)
        about = {"node": came.node}
        if came.began > 1:
            steps = job.group.program.schedule.steps
            first = steps[came.first - 1] if came.first else 0
            self._note_deaths(task, came.began, first)
            about |= {"began": came.began, "from": first}
        return batch.ended(job, task.runs, came.progress, **about)

    def _failed(self, task: _Task, why: str) -> batch.Outcome:
        """Fail a batch and all pending batches of its program, which would fail as well."""
        others = [other for other in self.waiting if other.job == task.job]
        self.waiting = deque(other for other in self.waiting if other.job != task.job)
        return batch.failed([run for each in (task, *others) for run in each.runs], why)


def work(sent: Sent, runs: Sequence[SeededPoint], number: int, notes: Any) -> Came:
    """Train a batch in a worker of the cluster, from its saved state if there is one."""
    began, left = ray.get(notes.begin.remote(number))
    node = f"{socket.gethostname()}/{_own_node()[:6]}"
    if sent.code != store.code_version():  # on a node that joined later
        return Came(None, f"another version of the code ({store.code_version()})", node, began, 0)
    at = None if left is None else (left[1], ray.get(left[2]))
    try:
        with compilation.kept(sent.cache):
            program, device = _made(sent), jax.local_devices()[0]
            reached = _leaving(sent, program, number, notes)
            budget = devices.Budget(devices.free_bytes([device]))
            progress = batch.train(program, runs, device, reached, budget, at)
    except (RuntimeError, ValueError) as error:  # such as running out of memory
        return Came(None, str(error), node, began, 0)
    return Came(progress, "", node, began, len(at[0].points) if at else 0)


_last: dict[tuple[str, int], Program] = {}  # the latest program that this process compiled


def _made(sent: Sent) -> Program:
    """Return the program of a job; a process keeps the latest one compiled."""
    if sent.key in _last:
        return _last[sent.key]
    _last.clear()
    outside.load_environment(sent.point.env)
    environments.check(sent.point.env)
    outside.load_agent(sent.point.config.agent)
    outside.load_method(sent.point.config.replay)
    job = Job(programs.group_of([sent.point], sent.traced), (), sent.width, 0)
    _last[sent.key] = Program(job, batch.Programs(1))
    return _last[sent.key]


def _leaving(sent: Sent, program: Program, number: int, notes: Any) -> batch.Reached:
    """Return a callback that reports log points and periodically saves the state in the notes."""
    steps = program.job.group.program.schedule.steps
    told = left = time.monotonic()
    pause = sent.every

    def reached(progress: Progress, state: Any) -> bool:
        nonlocal told, left, pause
        now, done = time.monotonic(), len(progress.points)
        if now - told > _PAUSE:
            told = now
            notes.tell.remote(number, steps[done - 1])
        if now - left > pause and done < len(steps):
            ray.get(notes.leave.remote(number, steps[done - 1], progress, batch.arrays(state)))
            left = time.monotonic()
            pause = max(sent.every, _SHARE * (left - now))
        return True

    return reached


def _needs(joined: Cluster) -> dict[str, Any]:
    """Return the options of a Ray task."""
    needs: dict[str, Any] = {
        "num_cpus": 1,
        "max_retries": _DEATHS,
        "runtime_env": {"env_vars": cluster.environment(joined.accelerator)},
    }
    if joined.accelerator is None:
        return needs
    # A process releases an accelerator only when it exits, so each batch gets its own process.
    needs["max_calls"] = 1
    if joined.accelerator == "GPU":
        return needs | {"num_gpus": 1}
    return needs | {"resources": {joined.accelerator: 1}}


def _own_node() -> str:
    return ray.get_runtime_context().get_node_id()
