"""Training of a batch: runs of one program that execute together on one device."""

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.sharding import SingleDeviceSharding

from experiments.runs.log import say
from experiments.storage import files
from experiments.studies import devices
from experiments.studies.plan import Job
from experiments.studies.programs import Group
from experiments.studies.store import SeededPoint
from experiments.training.seeds import Seeds, over_seeds
from jaxreplay.saving import array_file

UNFINISHED = "unfinished"  # subfolder of the study for saved states
_TAG, _FORMAT = "jaxreplay.batch", 1  # of the files there
_ABOUT = {"points": int, "seconds": float, "compiling": float, "bytes": int}
Metrics = Mapping[str, np.ndarray]  # name -> [width]


class Progress(NamedTuple):
    """Progress of a batch at a log point."""

    points: list[Metrics]  # metrics of all log points so far
    seconds: float  # elapsed time, including compilation
    compiling: float  # seconds of compilation
    bytes: int  # memory of the batch while it runs


class Outcome(NamedTuple):
    """Outcome of a batch that has ended."""

    results: list[tuple[SeededPoint, pd.DataFrame]]
    failures: list[tuple[SeededPoint, str]]
    cost: dict[str, Any]


class Task(NamedTuple):
    """A batch of runs that a device trains."""

    job: Job
    runs: tuple[SeededPoint, ...]
    reached: Callable[[int], bool]  # takes the agent steps of each run; returns whether to go on


# Trains a task on a device; returns None if `reached` stopped it. A RuntimeError or ValueError
# fails all batches of the job.
Train = Callable[[Task, Any], Outcome | None]
Reached = Callable[[Progress, Any], bool]  # called at log points; returns whether to go on


class Programs:
    """Programs that are traced once, and compiled once for each width and device.

    All cores are one device that runs several batches at a time, since threads can share a compiled
    program. Several plans can use the same programs.
    """

    def __init__(self, most: int) -> None:
        """Keep at most `most` compiled programs."""
        self._most, self._lock = most, threading.Lock()
        self._traced: dict[int, tuple[Group, Seeds | None]] = {}
        self._compiled: dict[Any, Future[Any]] = {}

    def seeds(self, group: Group) -> Seeds:
        """Return the functions of a group's program, vectorized over runs."""
        with self._lock:
            found = self._traced.setdefault(id(group.program), (group, None))[1]
            if found is None:
                found = over_seeds(group.program, group.example)
                self._traced[id(group.program)] = (group, found)
            return found

    def compiled(
        self, group: Group, width: int, inputs: Any, device: jax.Device
    ) -> tuple[Any, float]:
        """Return a group's compiled training loop, and the seconds that this call compiled."""
        seeds, key = self.seeds(group), (id(group.program), width, device)
        with self._lock:
            mine = key not in self._compiled
            if mine:
                while len(self._compiled) >= self._most:
                    self._forget(next(iter(self._compiled))[0])
            found = self._compiled.setdefault(key, Future())
        if not mine:  # another thread may still be compiling it
            return found.result(), 0.0
        began = time.perf_counter()
        try:
            found.set_result(_compile(seeds, inputs, device))
        except BaseException as error:
            found.set_exception(error)
            raise
        return found.result(), time.perf_counter() - began

    def _forget(self, program: int) -> None:
        """Drop a program and its (larger) trace; running batches keep their references."""
        self._compiled = {key: at for key, at in self._compiled.items() if key[0] != program}
        self._traced.pop(program, None)


def _compile(seeds: Seeds, inputs: Any, device: jax.Device) -> Any:
    """Compile a training loop for a device before its state is allocated."""
    at = SingleDeviceSharding(device)
    state, count = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at),
        (jax.eval_shape(seeds.init, inputs), jnp.zeros((), jnp.int32)),
    )
    return seeds.chunk.lower(state, count).compile()


def train(
    job: Job,
    runs: Sequence[SeededPoint],
    device: jax.Device,
    programs: Programs,
    reached: Reached,
    budget: devices.Budget,
    left: tuple[Progress, list[np.ndarray]] | None = None,
) -> Progress | None:
    """Train the runs of a batch to the end of their schedule; return the final progress.

    Args:
      job: job of the batch.
      runs: points and seeds.
      device: device to train on.
      programs: compiles the program of the job when it is first needed.
      reached: called at every log point; if it returns False, training stops and returns None.
      budget: memory shared by all batches; training waits until enough of it is free.
      left: progress and `arrays` of a saved state to resume from; by default, training starts over.

    Raises:
      ValueError: the batch needs more memory than the whole budget.
    """
    start, seeds = time.perf_counter(), programs.seeds(job.group)
    full = _inputs(job, runs)
    inputs = jax.device_put(full, device)
    compiled, compiling = programs.compiled(job.group, job.width, inputs, device)
    size = devices.bytes_of(compiled)
    points, before = [], 0.0
    if left is not None:
        points, before = [*left[0].points], left[0].seconds
        compiling += left[0].compiling
    with budget.taken(size):
        if left is None:
            state = seeds.init(inputs)
        else:
            state = _restored(left[1], jax.eval_shape(seeds.init, full), device)
        for blocks in job.group.program.schedule.log_points[len(points) :]:
            count = jax.device_put(jnp.asarray(blocks, jnp.int32), device)
            state, metrics = compiled(state, count)
            points.append(jax.device_get(metrics))
            seconds = before + time.perf_counter() - start
            if not reached(Progress(points, seconds, compiling, size), state):
                return None
    return Progress(points, before + time.perf_counter() - start, compiling, size)


def _inputs(job: Job, runs: Sequence[SeededPoint]) -> Any:
    """Return the inputs of a program; copies of the last run, later dropped, pad a short batch."""
    return job.group.inputs([*runs, *[runs[-1]] * (job.width - len(runs))])


def finished(job: Job, runs: Sequence[SeededPoint], progress: Progress, **about: Any) -> Outcome:
    """Return the outcome of a batch that finished training, with facts `about` its cost."""
    results, failures = split(runs, job.group.program.schedule.steps, progress.points)
    cost: dict[str, Any] = {
        "runs": {},
        "seconds": round(progress.seconds, 2),
        "compiling": round(progress.compiling, 2),
        "width": job.width,
        "bytes": progress.bytes,
        "inputs": [place.name for place in job.group.traced],
        **about,
    }
    for point, seed in runs:
        cost["runs"].setdefault(point.id, []).append(seed)
    return Outcome(results, failures, cost)


def failed(runs: Sequence[SeededPoint], why: str) -> Outcome:
    """Return the outcome of runs that could not be trained."""
    line = " ".join(why.split())[:300]
    return Outcome([], [(run, line) for run in runs], {})


def split(
    runs: Sequence[SeededPoint], steps: Sequence[int], points: Sequence[Metrics]
) -> tuple[list[tuple[SeededPoint, pd.DataFrame]], list[tuple[SeededPoint, str]]]:
    """Return the metrics of the successful runs of a batch, and the reasons of the failed ones."""
    results, failures = [], []
    for place, (point, seed) in enumerate(runs):
        own = {name: [at[name][place] for at in points] for name in points[0]}
        faults = [int(rows) for rows in own.pop("fault") if rows]
        broken = f"{point.env} returned or received a number that is not finite"
        if faults:
            at = faults[0] * point.config.sizes.num_envs
            failures.append(((point, seed), f"agent step {at:,}: {broken}"))
        elif not np.isfinite(own["eval_return"]).all():
            failures.append(((point, seed), f"evaluation: {broken}"))
        else:
            results.append(((point, seed), pd.DataFrame({"step": list(steps), **own})))
    return results, failures


class SavedState:
    """The saved state of an unfinished batch of runs, from which an interrupted study resumes.

    The name of its file depends on everything that determines the numbers of the batch.
    """

    def __init__(self, folder: Path, job: Job, runs: Sequence[SeededPoint], code: str) -> None:
        configs = {point.id: point.config.to_json() for point, _ in runs}
        names = [(point.id, seed) for point, seed in runs]
        traced = [place.name for place in job.group.traced]
        text = json.dumps([names, configs, job.width, traced, code], sort_keys=True)
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"
        self._path, self._job, self._runs = folder / UNFINISHED / name, job, runs

    def load(self, programs: Programs) -> tuple[Progress, list[np.ndarray]] | None:
        """Return the progress and the arrays of the state.

        The result is None if there is no state, or if, after a message, its file is damaged.

        Args:
          programs: traces the program of the batch, which decides the shapes of all arrays.
        """
        if not self._path.exists():
            return None
        group, remedy = self._job.group, "the batch starts over"
        seeds = programs.seeds(group)
        like = jax.eval_shape(seeds.init, _inputs(self._job, self._runs))
        metrics = jax.eval_shape(seeds.chunk, like, jnp.zeros((), jnp.int32))[1]
        try:
            with array_file.opened(self._path, _TAG, _FORMAT, _ABOUT, remedy) as saved:
                about = {name: saved.header[name] for name in _ABOUT}
                count = about.pop("points")
                with files.reading(self._path, remedy):
                    if not 0 < count < len(group.program.schedule.log_points):
                        raise ValueError(f"{count} log points")
                shapes = {
                    name: jax.ShapeDtypeStruct((count, *one.shape), one.dtype)
                    for name, one in metrics.items()
                }
                found = saved.read({"metrics": shapes, "state": like})
        except ValueError as error:
            say(str(error))
            return None
        rows = {name: np.asarray(own) for name, own in found["metrics"].items()}
        points = [{name: own[at] for name, own in rows.items()} for at in range(count)]
        return Progress(points, **about), arrays(found["state"])

    def save(self, progress: Progress, state: Any) -> None:
        """Replace the saved state."""
        points = progress.points
        metrics = {name: np.stack([at[name] for at in points]) for name in points[0]}
        about = {"format": _FORMAT, **progress._asdict(), "points": len(points)}
        content = array_file.encode({"metrics": metrics, "state": state}, _TAG, about)
        self._path.parent.mkdir(exist_ok=True)
        files.write_bytes(self._path, content)

    def remove(self) -> None:
        """Delete the saved state, and its folder if it is empty."""
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()


def arrays(state: Any) -> list[np.ndarray]:
    """Return the leaves of a state as host arrays, which another process can read."""
    leaves = (jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(state))
    return [np.asarray(leaf) for leaf in leaves]


def _restored(saved: Sequence[np.ndarray], like: Any, device: jax.Device) -> Any:
    """Return the state from which `arrays` made these arrays, bit for bit."""
    leaves, structure = jax.tree.flatten(like)
    restored = []
    for leaf, array in zip(leaves, saved, strict=True):
        own = jax.device_put(array, device)
        if _is_key(leaf):  # an array of no elements is the public way to a dtype's implementation
            own = jax.random.wrap_key_data(
                own, impl=jax.random.key_impl(jnp.empty((0,), leaf.dtype))
            )
        restored.append(own)
    return jax.tree.unflatten(structure, restored)


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
