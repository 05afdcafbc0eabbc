"""Carrying out a sweep on a Ray cluster: every wave is a task.

A task computes what a device of this machine would: the same program at the same width, with the
same flags and threads. Ray places it, and starts it anew elsewhere if its worker or node dies; it
then goes on from the latest state that it left with `Notes`, which gives the same numbers.
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
from experiments.runs.run import Stopped
from experiments.studies import cluster, cluster_remote, devices, memory, programs, store, waves
from experiments.studies.cluster import Cluster
from experiments.studies.grid import Place, Point
from experiments.studies.keeping import Keeper
from experiments.studies.plan import Job, Plan
from experiments.studies.progress import Bar
from experiments.studies.store import Lane, Store
from experiments.studies.waves import Program, Stand

_DEATHS = 5  # of its workers, after which a wave is said to have failed
_PAUSE = 1.0  # seconds between two looks at how far waves have come
_SHARE = 20  # times as long as it takes to leave a state, none is left
Cache = Path | Literal["off"] | None


class Sent(NamedTuple):
    """What a worker needs to make the program of a job."""

    key: tuple[str, int]  # tells it from all others
    point: Point  # the first of its group
    traced: tuple[Place, ...]
    width: int
    code: str  # its version
    cache: Cache  # where compiled programs are kept
    every: float  # seconds between states that are left


class Came(NamedTuple):
    """What a worker sends back."""

    stand: Stand | None  # None: it failed
    why: str
    node: str
    began: int  # how often
    first: int  # log points that an earlier worker had left behind


class _Task(NamedTuple):
    number: int
    job: int
    lanes: tuple[Lane, ...]


def carry_out(
    plan: Plan,
    results: Store,
    joined: Cluster,
    cache: Cache,
    every: float,
    bar: Bar | None = None,
) -> None:
    """Run what is missing of a sweep, and keep every wave as it ends.

    Args:
      plan: over the cluster's slots.
      results: get what ends.
      joined: the cluster.
      cache: where workers keep compiled programs.
      every: seconds, after which a wave leaves its state at the next log point.
      bar: that of a larger whole, whose affair it is if runs fail; None: the plan is all there is.

    Raises:
      Stopped: the user pressed Ctrl-C, or runs failed; what has ended is kept.
    """
    results.facts["versions"]["device"] = plan.devices[0].kind
    with Keeper(plan, results, bar) as keeper:
        engine = _Engine(plan, joined, cache, every)
        try:
            while engine.running or engine.waiting:
                engine.submit()
                for wave in engine.ended(keeper.bar):
                    keeper.keep(wave)
                engine.show(keeper.bar)
        except KeyboardInterrupt:
            keeper.bar.close()
            for wave in engine.ended(keeper.bar, wait=0):
                keeper.keep(wave)
            raise
        except (ConnectionError, ray.exceptions.RayError) as error:
            line = f"the cluster at {joined.address} is gone ({cluster.first_line(error)})"
            raise Stopped(keeper.unfinished(line), 1) from error
        finally:
            engine.cancel()


class _Engine:
    """Waves that wait, and those that Ray has been given."""

    def __init__(self, plan: Plan, joined: Cluster, cache: Cache, every: float) -> None:
        self._plan, sweep = plan, uuid.uuid4().hex
        self.waiting = deque(
            _Task(number, job, lanes)
            for number, (job, lanes) in enumerate(
                (job, lanes) for job, own in enumerate(plan.jobs) for lanes in own.waves
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
        """Give Ray as many waves as there are slots, in order."""
        while self.waiting and len(self.running) < len(self._plan.devices):
            task = self.waiting.popleft()
            reference = self._work.remote(
                self._sent[task.job], task.lanes, task.number, self._notes
            )
            self.running[reference] = task

    def ended(self, bar: Bar, wait: float = _PAUSE) -> list[waves.Wave]:
        """Return the waves that end within so many seconds, or so many that one does."""
        if not self.running:
            return []
        done, _ = ray.wait(list(self.running), num_returns=1, timeout=wait)
        if done:  # and all others that have ended
            done, _ = ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
        ended = []
        for reference in done:
            task = self.running.pop(reference)
            self._advance(bar, task, self._plan.jobs[task.job].steps)
            bar.works_on(task.number, None)
            ended.append(self._wave(reference, task))
        return ended

    def show(self, bar: Bar) -> None:
        """Show how far waves have come, and say which had to begin anew."""
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
        """Say so if a wave has begun more often than was known, last from step `now`."""
        if times > self._began.get(task.number, 1):
            name = self._plan.jobs[task.job].group.name
            say(f"{name}: a worker died, and another goes on from step {now:,}")
        self._began[task.number] = times

    def _advance(self, bar: Bar, task: _Task, now: int) -> None:
        """Note how many agent steps each of a task's runs has done."""
        before = self._shown.get(task.number, 0)
        if now != before:
            bar.advance((now - before) * len(task.lanes))
        self._shown[task.number] = now

    def cancel(self) -> None:
        """End what runs."""
        with contextlib.suppress(Exception):  # where the cluster is gone, Ray raises just that
            for reference in self.running:
                ray.cancel(reference, force=True)
            ray.kill(self._notes)
        self.waiting.clear()
        self.running.clear()

    def _wave(self, reference: Any, task: _Task) -> waves.Wave:
        """Return what has come of a task that has ended."""
        job = self._plan.jobs[task.job]
        try:
            came: Came = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # a module that a node lacks, a bug
            return self._failed(task, cluster.first_line(error))
        except ray.exceptions.RayError as error:
            return waves.failed(task.lanes, f"its workers died ({cluster.first_line(error)})")
        if came.stand is None:
            return self._failed(task, f"on {came.node}: {came.why}")
        self._notes.forget.remote(task.number)
        about = {"node": came.node}
        if came.began > 1:
            steps = job.group.program.schedule.steps
            first = steps[came.first - 1] if came.first else 0
            self._note_deaths(task, came.began, first)
            about |= {"began": came.began, "from": first}
        return waves.ended(job, task.lanes, came.stand, **about)

    def _failed(self, task: _Task, why: str) -> waves.Wave:
        """Fail a wave, and all of its program that wait: they would fail, too."""
        others = [other for other in self.waiting if other.job == task.job]
        self.waiting = deque(other for other in self.waiting if other.job != task.job)
        return waves.failed([lane for each in (task, *others) for lane in each.lanes], why)


def work(sent: Sent, lanes: Sequence[Lane], number: int, notes: Any) -> Came:
    """Train a wave in a worker of the cluster, from where another left it, if one did."""
    began, left = ray.get(notes.begin.remote(number))
    node = f"{socket.gethostname()}/{_own_node()[:6]}"
    if sent.code != store.code_version():  # of a node that joined later
        return Came(None, f"another version of the code ({store.code_version()})", node, began, 0)
    at = None if left is None else (left[1], ray.get(left[2]))
    try:
        with compilation.kept(sent.cache):
            program, device = _made(sent), jax.local_devices()[0]
            reached = _leaving(sent, program, number, notes)
            budget = memory.Budget(devices.free_bytes([device]))
            stand = waves.train(program, lanes, device, reached, budget, at)
    except (RuntimeError, ValueError) as error:  # such as memory that runs out
        return Came(None, str(error), node, began, 0)
    return Came(stand, "", node, began, len(at[0].points) if at else 0)


_last: dict[tuple[str, int], Program] = {}  # what this process has compiled


def _made(sent: Sent) -> Program:
    """Return the program of a job; a process keeps the last one, compiled."""
    if sent.key in _last:
        return _last[sent.key]
    _last.clear()
    environments.check(sent.point.env)
    outside.load_agent(sent.point.config.agent)
    outside.load_method(sent.point.config.replay)
    job = Job(programs.group_of([sent.point], sent.traced), (), sent.width, 0)
    _last[sent.key] = Program(job, waves.Programs(1))
    return _last[sent.key]


def _leaving(sent: Sent, program: Program, number: int, notes: Any) -> waves.Reached:
    """Return what tells of log points, and now and then leaves the state with the notes."""
    steps = program.job.group.program.schedule.steps
    told = left = time.monotonic()
    pause = sent.every

    def reached(stand: Stand, state: Any) -> bool:
        nonlocal told, left, pause
        now, done = time.monotonic(), len(stand.points)
        if now - told > _PAUSE:
            told = now
            notes.tell.remote(number, steps[done - 1])
        if now - left > pause and done < len(steps):
            ray.get(notes.leave.remote(number, steps[done - 1], stand, waves.arrays(state)))
            left = time.monotonic()
            pause = max(sent.every, _SHARE * (left - now))
        return True

    return reached


def _needs(joined: Cluster) -> dict[str, Any]:
    """Return what Ray has to know of a task."""
    needs: dict[str, Any] = {
        "num_cpus": 1,
        "max_retries": _DEATHS,
        "runtime_env": {"env_vars": cluster.environment(joined.accelerator)},
    }
    if joined.accelerator is None:
        return needs
    # An accelerator is not let go while its process lives: each wave has one of its own.
    needs["max_calls"] = 1
    if joined.accelerator == "GPU":
        return needs | {"num_gpus": 1}
    return needs | {"resources": {joined.accelerator: 1}}


def _own_node() -> str:
    return ray.get_runtime_context().get_node_id()
