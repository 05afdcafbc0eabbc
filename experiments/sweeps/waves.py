"""Training a wave: the runs of one program that go together, on one device, to their end."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments.sweeps.plan import Job
from experiments.sweeps.store import Lane
from experiments.training.seeds import Seeds, over_seeds

Metrics = Mapping[str, np.ndarray]  # name -> [width]


class Stand(NamedTuple):
    """How far a wave has come at a log point."""

    points: list[Metrics]  # of the log points behind it
    seconds: float  # that it took, compiling included
    compiling: float  # seconds of these


class Wave(NamedTuple):
    """Runs that have ended together."""

    results: list[tuple[Lane, pd.DataFrame]]
    failures: list[tuple[Lane, str]]
    cost: dict[str, Any]


Reached = Callable[[Stand, Any], bool]  # told of a log point and the state there: go on?


class Program:
    """The program of a job: traced once, compiled for each device that asks for it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._lock = threading.Lock()
        self._seeds: Seeds | None = None

    @property
    def seeds(self) -> Seeds:
        """Its functions, over lanes."""
        with self._lock:
            if self._seeds is None:
                self._seeds = over_seeds(self.job.group.program, self.job.group.example)
            return self._seeds


class Worker:
    """A device, and the program that it has compiled: it keeps one."""

    def __init__(self, device: jax.Device) -> None:
        self._device = device
        self._program: Program | None = None
        self._compiled: Any = None

    def train(
        self,
        program: Program,
        lanes: Sequence[Lane],
        reached: Reached,
        left: tuple[Stand, list[np.ndarray]] | None = None,
    ) -> Stand | None:
        """Train the runs of a wave to their end; return how it stands then.

        Args:
          program: theirs.
          lanes: points and seeds.
          reached: is told of every log point; None is returned where it does not want to go on.
          left: where to go on: how it stood, and what `arrays` made of the state there.
        """
        job, plan, start = program.job, program.job.group.program.schedule, time.perf_counter()
        # The last lane fills up a wave that is too short, and is then left out.
        full = job.group.lanes([*lanes, *[lanes[-1]] * (job.width - len(lanes))])
        if left is None:
            state = program.seeds.init(jax.device_put(full, self._device))
            points, before, compiling = [], 0.0, 0.0
        else:
            state = _restored(left[1], jax.eval_shape(program.seeds.init, full), self._device)
            points, before, compiling = [*left[0].points], left[0].seconds, left[0].compiling
        for blocks in plan.log_points[len(points) :]:
            count = jax.device_put(jnp.asarray(blocks, jnp.int32), self._device)
            if self._program is not program:
                began = time.perf_counter()
                self._compiled = program.seeds.chunk.lower(state, count).compile()
                self._program = program
                compiling += time.perf_counter() - began
            state, metrics = self._compiled(state, count)
            points.append(jax.device_get(metrics))
            seconds = before + time.perf_counter() - start
            if not reached(Stand(points, seconds, compiling), state):
                return None
        return Stand(points, before + time.perf_counter() - start, compiling)


def ended(job: Job, lanes: Sequence[Lane], stand: Stand, **about: Any) -> Wave:
    """Return what has come of a wave that was trained to its end.

    Args:
      job: its program's.
      lanes: points and seeds.
      stand: how it stands.
      **about: what else to say of it.
    """
    results, failures = split(lanes, job.group.program.schedule.steps, stand.points)
    cost: dict[str, Any] = {
        "runs": {},
        "seconds": round(stand.seconds, 2),
        "compiling": round(stand.compiling, 2),
        "width": job.width,
        "inputs": [place.name for place in job.group.traced],
        **about,
    }
    for point, seed in lanes:
        cost["runs"].setdefault(point.id, []).append(seed)
    return Wave(results, failures, cost)


def failed(lanes: Sequence[Lane], why: str) -> Wave:
    """Return what has come of runs that could not be trained."""
    line = " ".join(why.split())[:300]
    return Wave([], [(lane, line) for lane in lanes], {})


def split(
    lanes: Sequence[Lane], steps: Sequence[int], points: Sequence[Metrics]
) -> tuple[list[tuple[Lane, pd.DataFrame]], list[tuple[Lane, str]]]:
    """Return the metrics of every run of a wave, and why those failed that did."""
    results, failures = [], []
    for place, (point, seed) in enumerate(lanes):
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


def arrays(state: Any) -> list[np.ndarray]:
    """Return the leaves of a state as arrays of the host, which another process can read."""
    leaves = (jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(state))
    return [np.asarray(leaf) for leaf in leaves]


def _restored(saved: Sequence[np.ndarray], like: Any, device: jax.Device) -> Any:
    """Return the state that `arrays` was given, bit for bit."""
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
