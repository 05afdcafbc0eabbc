"""Training of a batch of runs of one compiled program, together on one or several devices."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from experiments.runs.assembly import assemble
from experiments.runs.log import say
from experiments.studies.checkpoints import Checkpoint, Metrics, Progress
from experiments.studies.devices import Budget, Unit
from experiments.studies.plan import Job
from experiments.studies.store import SeededPoint
from experiments.training.drivers import CompiledDriver, CutShort, Driver, Layout, Programs
from experiments.training.host_loop import HostDriver

_SHARE = 20  # smallest interval between checkpoints, as a multiple of the time to write one


class BatchResult(NamedTuple):
    """Results and failures of a batch of runs that has ended."""

    results: list[tuple[SeededPoint, pd.DataFrame]]
    failures: list[tuple[SeededPoint, str]]
    cost: dict[str, Any]
    code: tuple[str, ...] = ()  # versions of the code that computed it
    remove: Callable[[], None] = lambda: None  # deletes the checkpoint, once results are on disk


class Assignment(NamedTuple):
    """A batch of runs that a unit of one or several devices trains.

    Attributes:
      job: the job, whose program trains the batch.
      runs: point and seed of each run.
      reached: function that is called at log points with the agent steps of each run and the
        progress (None if unknown); returns whether to go on.
      stopped: function that returns whether to stop, also between two log points.
    """

    job: Job
    runs: tuple[SeededPoint, ...]
    reached: Callable[[int, Progress | None], bool]
    stopped: Callable[[], bool]


# Trains an assignment on a unit; returns None if it was stopped. An EnvironmentFailed fails the
# runs of the assignment; a RuntimeError or ValueError fails them and all pending runs of the job.
Train = Callable[[Assignment, Any], BatchResult | None]


def decided_by(job: Job, runs: Sequence[SeededPoint]) -> tuple[Any, ...]:
    """Return the values that determine the numbers of a batch, as arguments of `Checkpoint`."""
    configs = {point.id: point.config.to_json() for point, _ in runs}
    traced = [place.name for place in job.group.traced]
    # Runs that train together have the same numbers with any division into programs.
    width = None if job.together else job.width
    return [(point.id, seed) for point, seed in runs], configs, width, traced


def driver_of(
    job: Job, runs: Sequence[SeededPoint], unit: Unit, programs: Programs | None = None
) -> Driver:
    """Return the driver of some runs of a job.

    Args:
      job: the job.
      runs: points and seeds.
      unit: devices that train the runs together.
      programs: traced and compiled programs, which several drivers may share.
    """
    if job.group.program is not None:
        mesh = job.group.program.mesh
        layout = Layout(len(runs), job.width, unit if mesh is None else (mesh,))  # pyright: ignore[reportArgumentType]
        return CompiledDriver(job.group.program, job.group.inputs(runs), layout, programs)
    config = job.group.points[0].config
    spec, environment, agent, replay = assemble(config)
    seeds = [seed for _, seed in runs]
    return HostDriver(environment, spec, agent, replay, config.loop, seeds)  # pyright: ignore[reportArgumentType]


def train(
    driver: Driver,
    budget: Budget,
    checkpoint: Checkpoint,
    reached: Callable[[int, Progress], bool],
    *,
    code: str,
    every: float,
    keep: bool = False,
) -> Progress | None:
    """Train the runs of a driver to the end of their schedule; return their final progress.

    The result is None if training is stopped early, by `reached` or by the driver.

    Training continues from the checkpoint, if there is one. Writing checkpoints takes at most a
    twentieth of the time.

    Args:
      driver: the driver, which is closed at the end.
      budget: memory shared by all batches; training waits until enough of it is free.
      checkpoint: the checkpoint of the batch.
      reached: function that is called with the agent steps of each run and with the progress:
        once before training starts, and then at every log point. If it returns False, training
        writes a checkpoint and returns None.
      code: version of the code.
      every: seconds between two checkpoints.
      keep: whether to write a checkpoint at the end, too.

    Raises:
      ValueError: the batch needs more memory than the whole budget, or its replay stores frames and
        observations cannot be rebuilt from them.
      EnvironmentFailed: an environment on the host failed.
    """
    start = saved_at = time.perf_counter()
    plan = driver.schedule
    with _closing(driver):
        driver.prepare()
        with budget.taken(driver.bytes):
            before, state = checkpoint.read(driver) or (Progress(), None)
            points, blocks = list(before.points), before.blocks
            versions = tuple(dict.fromkeys([*before.code, code]))
            broken = np.any([_broken(metrics) for metrics in points], axis=0)

            def progress() -> Progress:
                seconds = before.seconds + time.perf_counter() - start
                compiling = before.compiling + driver.compiling
                return Progress(points, blocks, seconds, compiling, driver.bytes, versions)

            def save(state: Any) -> None:
                nonlocal saved_at
                began = time.perf_counter()
                step = plan.step_at(len(points), blocks)
                checkpoint.write(progress(), step, driver.to_save(state))
                saved_at = began + _SHARE * (time.perf_counter() - began)

            done = 0 if state is None else plan.step_at(len(points), blocks)
            if not reached(done, progress()):
                return None
            try:
                state = driver.init() if state is None else driver.resume(state)
                for ahead in plan.log_points[len(points) :]:
                    state, metrics = driver.chunk(state, ahead - blocks)
                    blocks, metrics = 0, jax.device_get(metrics)
                    _check_frames(metrics)
                    points.append(metrics)
                    broken |= _broken(metrics)
                    goes_on = reached(plan.steps[len(points) - 1], progress())
                    ended = len(points) == len(plan.steps)
                    due = not goes_on or time.perf_counter() - saved_at > every
                    if keep if ended else due:
                        save(state)
                    if broken.all():
                        break
                    if not (goes_on or ended):
                        return None
            except CutShort as cut:
                blocks += cut.blocks
                if cut.state is not None:  # otherwise in the warm-up
                    save(cut.state)
                return None
    return progress()


@contextlib.contextmanager
def _closing(driver: Driver) -> Iterator[None]:
    """Close a driver after the context; an environment that cannot be closed fails no run."""
    try:
        yield
    finally:
        try:
            driver.close()
        except Exception as error:
            say(f"an environment could not be closed: {error!r}")


def finished(
    job: Job, runs: Sequence[SeededPoint], progress: Progress, **about: Any
) -> BatchResult:
    """Return the outcome of a batch that finished training; `about` has further facts on cost."""
    results, failures = split(runs, job.group.schedule.steps, progress.points)
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
    return BatchResult(results, failures, cost, progress.code)


def failed(runs: Sequence[SeededPoint], why: str) -> BatchResult:
    """Return the outcome of runs that could not be trained."""
    line = " ".join(why.split())[:300]
    return BatchResult([], [(run, line) for run in runs], {})


def split(
    runs: Sequence[SeededPoint], steps: Sequence[int], points: Sequence[Metrics]
) -> tuple[list[tuple[SeededPoint, pd.DataFrame]], list[tuple[SeededPoint, str]]]:
    """Return the metrics of a batch's successful runs, and the reasons why other runs failed."""
    results, failures = [], []
    for (point, seed), metrics in zip(runs, _by_run(points), strict=True):
        faults = [int(rows) for rows in metrics["fault"] if rows]
        wrong = f"{point.env} returned or received a number that is not finite"
        if faults:
            at = faults[0] * point.config.sizes.num_envs
            failures.append(((point, seed), f"agent step {at:,}: {wrong}"))
        elif not np.isfinite(metrics["eval_return"]).all():
            failures.append(((point, seed), f"evaluation: {wrong}"))
        else:
            columns = {name: values for name, values in metrics.items() if name != "fault"}
            results.append(((point, seed), pd.DataFrame({"step": list(steps), **columns})))
    return results, failures


def _by_run(points: Sequence[Metrics]) -> list[dict[str, list[Any]]]:
    """Return the metrics of every run over all log points."""
    count = len(points[0]["eval_return"])
    return [
        {name: [point[name][run] for point in points] for name in points[0]} for run in range(count)
    ]


def _broken(metrics: Metrics) -> np.ndarray:
    """Return bool `[S]`: whether a run's environment returned or received a non-finite number."""
    return (metrics["fault"] != 0) | ~np.isfinite(metrics["eval_return"])


def _check_frames(metrics: Metrics) -> None:
    """Raise ValueError if frames do not suffice to rebuild the sampled observations."""
    lost, odd = (metrics.get(f"replay/frames_{name}") for name in ("lost", "malformed"))
    if odd is not None and odd.any():
        raise ValueError(
            "episodes begin with stacks of frames that are not zero before the first frame, so the "
            "replay can't store each frame once: use --frame-stack 0 and another --out"
        )
    if lost is not None and lost.any():
        raise ValueError(
            "episodes are too short for the replay's spare frames, and some samples lack frames: "
            "use a larger --frame-spare, or --frame-stack 0, and another --out"
        )
