"""Execution of a study on a Ray cluster, with one task per batch of runs.

A task runs the same program, at the same width (number of runs) and with the same flags and number
of threads, as a device of this machine. If its worker or node dies, Ray restarts the task
elsewhere, and it resumes from the latest checkpoint in `Notes` and produces the same numbers.
"""

import contextlib
import itertools
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from experiments import environments
from experiments.runs import compilation, outside
from experiments.runs.log import say
from experiments.studies import batch, cluster, devices, programs, store
from experiments.studies.batch import Assignment, BatchResult, Train, decided_by
from experiments.studies.checkpoints import Checkpoint, Progress
from experiments.studies.cluster import Cluster
from experiments.studies.grid import Place, Point
from experiments.studies.options import Cache, Where
from experiments.studies.plan import Job, Plan
from experiments.studies.store import SeededPoint, Store
from experiments.training.drivers import Programs

_DEATHS = 5  # restarts of a batch after the death of its worker
_PAUSE = 1.0  # seconds between two reads of the progress of a batch


class Sent(NamedTuple):
    """Specification of a job, from which a worker builds its program."""

    key: tuple[str, str]  # unique identifier of the job
    point: Point  # first point of its group
    traced: tuple[Place, ...]  # settings that are inputs of the program
    width: int
    code: str  # version of the code
    cache: Cache  # directory of compiled programs
    every: float  # seconds between two checkpoints


class Came(NamedTuple):
    """Result that a worker returns."""

    progress: Progress | None  # None if the batch failed
    why: str
    node: str
    began: int  # number of starts of the batch
    first: int  # log points in the state that an earlier worker saved


class Notes:
    """Ray actor that stores the progress and the latest checkpoints of batches of runs.

    The actor runs on the node that started the study, so it lives as long as the study. A batch
    that restarts after the death of its node computes the same results, so it reports the same
    progress again.
    """

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._began: dict[int, int] = {}
        self._left: dict[int, tuple[int, Any]] = {}

    def begin(self, batch: int) -> tuple[int, Any]:
        """Count a start of a batch; return its number of starts, and its checkpoint or None.

        The checkpoint is a reference to the object store.
        """
        self._began[batch] = self._began.get(batch, 0) + 1
        self._steps[batch], checkpoint = self._left.get(batch, (0, None))
        return self._began[batch], checkpoint

    def tell(self, batch: int, steps: int) -> None:
        """Record the agent steps that each run of a batch has taken."""
        self._steps[batch] = steps

    def leave(self, batch: int, steps: int, checkpoint: bytes) -> None:
        """Keep the checkpoint of a batch in the object store, which spills to disk."""
        self._left[batch] = (steps, ray.put(checkpoint))

    def forget(self, batch: int) -> None:
        """Delete the notes of a batch that has ended."""
        for notes in (self._steps, self._began, self._left):
            notes.pop(batch, None)

    def read(self, batch: int) -> tuple[int, int]:
        """Return the agent steps and the number of starts of a batch."""
        return self._steps.get(batch, 0), self._began.get(batch, 0)


class Remote:
    """The cores or accelerators of a cluster."""

    stops = "within seconds"

    def __init__(self, joined: Cluster, cache: Cache, where: Where) -> None:
        asked = where.device_count or len(joined.slots)
        if asked > len(joined.slots):
            raise ValueError(
                f"devices is {asked}, but the cluster has {len(joined.slots)}: use "
                f"{len(joined.slots)} or fewer"
            )
        self.units = [(slot,) for slot in joined.slots[:asked]]
        self._joined, self._cache, self._every = joined, cache, where.checkpoint_every

    @contextlib.contextmanager
    def working(self, plan: Plan, store_: Store) -> Iterator[Train]:
        """See `executor.Engine.working`."""
        store_.facts["versions"]["device"] = self._joined.slots[0].kind
        study, numbers, code = uuid.uuid4().hex, itertools.count(), store.code_version()
        sent = {
            job.group.name: ray.put(
                Sent(
                    (study, job.group.name), job.group.points[0], job.group.traced, job.width,
                    code, self._cache, self._every,
                )
            )
            for job in plan.jobs
        }  # fmt: skip
        remote = ray.remote(**_needs(self._joined))(work)
        here = NodeAffinitySchedulingStrategy(_own_node(), soft=False)
        notes = ray.remote(num_cpus=0, scheduling_strategy=here)(Notes).remote()

        running = set()  # references of submitted tasks

        def train(task: Assignment, unit: Any) -> BatchResult | None:
            del unit  # Ray chooses the node
            number = next(numbers)
            try:
                reference = remote.remote(sent[task.job.group.name], task.runs, number, notes)
                running.add(reference)
                if not _watch(reference, task, number, notes):
                    return None
                notes.forget.remote(number)
            except (ConnectionError, ray.exceptions.RayError) as error:
                why = f"lost the cluster at {self._joined.address} ({cluster.first_line(error)})"
                raise ConnectionError(why) from error
            running.discard(reference)
            return _outcome(task, reference)

        try:
            yield train
        finally:
            with contextlib.suppress(Exception):  # Ray raises one if the cluster is lost
                for reference in running:
                    ray.cancel(reference, force=True)
                ray.kill(notes)


def _watch(reference: Any, task: Assignment, number: int, notes: Any) -> bool:
    """Report the progress of a task until it ends or the study stops; return whether it ended."""
    known = 1
    while not ray.wait([reference], timeout=_PAUSE)[0]:
        steps, began = ray.get(notes.read.remote(number))
        if began > known:
            known = began
            say(
                f"{task.job.group.name}: a worker died, and another one resumes from step {steps:,}"
            )
        if not task.reached(steps, None):
            ray.cancel(reference, force=True)
            return False
    return True


def _outcome(task: Assignment, reference: Any) -> BatchResult:
    """Return the outcome of a task that has ended.

    Raises:
      RuntimeError: the program of the job can't run.
    """
    try:
        came: Came = ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # such as a module missing on a node, or a bug
        raise RuntimeError(cluster.first_line(error)) from error
    except ray.exceptions.RayError as error:
        return batch.failed(task.runs, f"its workers died ({cluster.first_line(error)})")
    if came.progress is None:
        raise RuntimeError(f"on {came.node}: {came.why}")
    steps, about = task.job.group.schedule.steps, {"node": came.node}
    task.reached(steps[-1], None)
    if came.began > 1:
        about |= {"began": came.began, "from": steps[came.first - 1] if came.first else 0}
    return batch.finished(task.job, task.runs, came.progress, **about)


def work(sent: Sent, runs: Sequence[SeededPoint], number: int, notes: Any) -> Came:
    """Train batch `number` on a worker; report its progress to `notes`, and return its result."""
    began, left = ray.get(notes.begin.remote(number))
    node = f"{socket.gethostname()}/{_own_node()[:6]}"
    if sent.code != store.code_version():  # on a node that joined later
        return Came(None, f"another version of the code ({store.code_version()})", node, began, 0)
    told = time.monotonic()

    def tell(steps: int, progress: Progress) -> bool:
        nonlocal told
        del progress
        if time.monotonic() - told > _PAUSE:
            told = time.monotonic()
            notes.tell.remote(number, steps)
        return True

    try:
        with tempfile.TemporaryDirectory() as folder, compilation.cache_programs(sent.cache):
            (job, own), device = _made(sent), jax.local_devices()[0]
            checkpoint = _Left(Path(folder), job, runs, number, notes)
            if left is not None:
                checkpoint.path.parent.mkdir()
                checkpoint.path.write_bytes(ray.get(left))
            driver = batch.driver_of(job, runs, (device,), own)
            budget = devices.Budget(devices.free_bytes([device]))
            progress = batch.train(
                driver, budget, checkpoint, tell, code=sent.code, every=sent.every
            )
    except (RuntimeError, ValueError) as error:  # such as running out of memory
        return Came(None, str(error), node, began, 0)
    return Came(progress, "", node, began, checkpoint.log_points)


class _Left(Checkpoint):
    """A checkpoint that is written to the actor `Notes` instead of a file."""

    log_points = 0  # in the checkpoint that was read

    def __init__(
        self, folder: Path, job: Job, runs: Sequence[SeededPoint], number: int, notes: Any
    ) -> None:
        super().__init__(folder, *decided_by(job, runs))
        self._number, self._notes = number, notes

    def read(self, driver: Any) -> tuple[Progress, Any] | None:
        """Return the progress and the saved state; see `Checkpoint.read`."""
        found = super().read(driver)
        self.log_points = len(found[0].points) if found else 0
        return found

    def write(self, progress: Progress, step: int, state: Any) -> None:
        """Replace the checkpoint; see `Checkpoint.write`."""
        content = self.encode(progress, step, state)
        ray.get(self._notes.leave.remote(self._number, step, content))


_last: dict[tuple[str, str], tuple[Job, Programs]] = {}  # the latest that this process compiled


def _made(sent: Sent) -> tuple[Job, Programs]:
    """Return a job and its compiled programs; a process keeps only those of its latest job."""
    if sent.key not in _last:
        _last.clear()
        outside.load_environment(sent.point.env)
        environments.check(sent.point.env)
        outside.load_agent(sent.point.config.agent)
        outside.load_method(sent.point.config.replay)
        group = programs.group_of([sent.point], sent.traced)
        job = Job(group, (), sent.width, sent.width, 0)
        _last[sent.key] = job, Programs(1)
    return _last[sent.key]


def _needs(joined: Cluster) -> dict[str, Any]:
    """Return Ray's options for the tasks that train batches of runs."""
    needs: dict[str, Any] = {
        "num_cpus": 1,
        "max_retries": _DEATHS,
        "runtime_env": {"env_vars": cluster.environment(joined.accelerator)},
    }
    if joined.accelerator is not None:
        # A process releases an accelerator only when it exits, so each batch gets its own process.
        needs |= {"max_calls": 1, **cluster.share(joined.accelerator, 1)}
    return needs


def _own_node() -> str:
    return ray.get_runtime_context().get_node_id()
