"""Carrying out a sweep: every device takes waves of runs until none is left.

A device compiles a program for itself. One program laid over all devices would be compiled once,
but as a partitioned one, which XLA simplifies differently: its numbers would hang on how many
devices there are, in the last digit. So each wave is the very program of `experiments.train`.
"""

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.sharding import SingleDeviceSharding

from experiments.runs import interrupt
from experiments.runs.log import say
from experiments.runs.run import Stopped
from experiments.sweeps import devices, memory
from experiments.sweeps.plan import Job, Plan
from experiments.sweeps.programs import Group
from experiments.sweeps.progress import Bar
from experiments.sweeps.store import Lane, Store
from experiments.training.seeds import Seeds, over_seeds


class _Wave(NamedTuple):
    """Runs that have ended together."""

    results: list[tuple[Lane, pd.DataFrame]]
    failures: list[tuple[Lane, str]]
    cost: dict[str, Any]


class _News(NamedTuple):
    """What a device has to say."""

    device: int
    what: str | None = None  # it is at this now; None: at nothing
    steps: int = 0  # agent steps it has done, of all runs of the wave
    wave: _Wave | None = None  # it has ended one
    error: BaseException | None = None  # it can't go on


class Whole(NamedTuple):
    """What several plans of one sweep have in common: its bar, and programs that are compiled."""

    bar: Bar
    programs: "Programs"


def carry_out(plan: Plan, store: Store, whole: Whole | None = None) -> None:
    """Run what is missing of a sweep, and keep every wave as it ends.

    Args:
      plan: what is to run.
      store: where results go.
      whole: of which this is a part; failed runs are then its own affair, and its bar stays. None:
        the plan is all there is.

    Raises:
      Stopped: the user pressed Ctrl-C, or runs failed; what has ended is kept.
    """
    programs, bar = whole.programs if whole else Programs(), whole.bar if whole else _bar(plan)
    board = _Board(plan, programs)
    threads = [
        threading.Thread(target=_work, args=(board, number, device), daemon=True)
        for number, device in enumerate(plan.devices[: plan.waves])
    ]
    try:
        for thread in threads:
            thread.start()
        _listen(board, store, bar, len(threads))
    except KeyboardInterrupt as error:
        board.stop.set()
        bar.close()
        say("stopping at the next log point; Ctrl-C again stops at once")
        for thread in threads:
            thread.join()
        while not board.news.empty():  # what ended meanwhile counts
            wave = board.news.get().wave
            if wave is not None:
                _keep(wave, store)
        raise Stopped(_unfinished("stopped", plan, store), interrupt.exit_code(error)) from None
    finally:
        board.stop.set()
        if whole is None:
            bar.close()
        store.write()
    if store.facts["failed"] and whole is None:
        runs, why = len(store.facts["failed"]), next(iter(store.facts["failed"].items()))
        message = f"{runs} runs failed, such as {why[0]}: {why[1]}"
        raise Stopped(_unfinished(message, plan, store), 1)


def _bar(plan: Plan) -> Bar:
    return Bar(plan.steps, plan.runs)


class Programs:
    """Programs that were traced, and compiled for devices; more than one plan may use them."""

    def __init__(self, most: int = 1) -> None:
        """Keep so many for each device."""
        self._most, self._lock = most, threading.Lock()
        self._traced: dict[int, _Traced] = {}
        self._compiled: dict[int, dict[Any, Any]] = {}

    def traced(self, group: Group) -> "_Traced":
        """Return a group's program, traced or to be traced."""
        with self._lock:
            return self._traced.setdefault(id(group.program), _Traced(group))

    def of(self, device: int) -> dict[Any, Any]:
        """Return what is compiled for a device."""
        with self._lock:
            return self._compiled.setdefault(device, {})

    def make_room(self, compiled: dict[Any, Any]) -> None:
        """Forget the oldest of a device's programs, so that another one may be kept."""
        while len(compiled) >= self._most:
            del compiled[next(iter(compiled))]


class _Board:
    """The waves that nobody has taken yet; devices take from it."""

    def __init__(self, plan: Plan, programs: Programs | None = None) -> None:
        self._lock = threading.Lock()
        self._waiting = {number: list(job.waves) for number, job in enumerate(plan.jobs)}
        self._begun: set[int] = set()
        self.programs = programs or Programs()
        self._programs = [_Program(job, self.programs.traced(job.group)) for job in plan.jobs]
        if devices.is_cpu(plan.devices):  # they share the host's memory
            self._memory = dict.fromkeys(plan.devices, memory.Budget(plan.limit))
        else:
            share = plan.limit // len(plan.devices)
            self._memory = {device: memory.Budget(share) for device in plan.devices}
        self.news: queue.Queue[_News] = queue.Queue()
        self.stop = threading.Event()

    def take(self, last: int | None) -> tuple[int, "_Program", tuple[Lane, ...]] | None:
        """Return a wave to do next, with the number of its job; None: none is left.

        Args:
          last: the job whose program the device has compiled.
        """
        with self._lock:
            left = {number: waves for number, waves in self._waiting.items() if waves}
            if not left or self.stop.is_set():
                return None
            fresh = [number for number in left if number not in self._begun]
            longest = max(left, key=lambda number: len(left[number]))
            number = last if last in left else (fresh[0] if fresh else longest)
            self._begun.add(number)
            return number, self._programs[number], left[number].pop(0)

    def budget(self, device: jax.Device) -> memory.Budget:
        """Return what waves on a device share."""
        return self._memory[device]

    def drop(self, number: int) -> list[tuple[Lane, ...]]:
        """Take all waves of a job from the board: its program can't run."""
        with self._lock:
            waves, self._waiting[number] = self._waiting[number], []
            return waves


class _Program(NamedTuple):
    """The program of a job."""

    job: Job
    traced: "_Traced"


class _Traced:
    """A program that is traced once, and compiled for each device that asks for it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._lock = threading.Lock()
        self._seeds: Seeds | None = None

    @property
    def seeds(self) -> Seeds:
        """Its functions, over lanes."""
        with self._lock:
            if self._seeds is None:
                self._seeds = over_seeds(self.group.program, self.group.example)
            return self._seeds


def _work(board: _Board, number: int, device: jax.Device) -> None:
    """Do waves on a device until none is left."""
    last, compiled = None, board.programs.of(number)
    try:
        while (taken := board.take(last)) is not None:
            last, program, lanes = taken
            board.news.put(_News(number, program.job.group.name))
            try:
                wave = _train(board, number, device, program, compiled, lanes)
            except (RuntimeError, ValueError) as error:  # such as memory that runs out
                lost = [lane for each in (lanes, *board.drop(last)) for lane in each]
                why = " ".join(str(error).split())[:300]
                wave = _Wave([], [(lane, why) for lane in lost], {})
            board.news.put(_News(number, wave=wave))
    except BaseException as error:
        board.news.put(_News(number, error=error))
    finally:
        board.news.put(_News(number))


def _train(
    board: _Board,
    number: int,
    device: jax.Device,
    program: _Program,
    compiled: dict[int, Any],
    lanes: Sequence[Lane],
) -> _Wave:
    """Train the runs of a wave to their end."""
    job, plan = program.job, program.job.group.program.schedule
    start = time.perf_counter()
    # The last lane fills up a wave that is too short, and is then left out.
    full = [*lanes, *[lanes[-1]] * (job.width - len(lanes))]
    inputs = jax.device_put(job.group.lanes(full), device)
    seeds, key, compiling = program.traced.seeds, (id(program.traced), job.width), 0.0
    if key not in compiled:
        board.programs.make_room(compiled)
        before = time.perf_counter()
        compiled[key] = _compile(seeds, inputs, device)
        compiling = time.perf_counter() - before
    size = memory.bytes_of(compiled[key])
    points, done = [], 0
    with board.budget(device).taken(size):
        state = seeds.init(inputs)
        for blocks, step in zip(plan.log_points, plan.steps, strict=True):
            if board.stop.is_set():
                return _Wave([], [], {})
            count = jax.device_put(jnp.asarray(blocks, jnp.int32), device)
            state, metrics = compiled[key](state, count)
            points.append(jax.device_get(metrics))
            board.news.put(_News(number, job.group.name, (step - done) * len(lanes)))
            done = step
        del state
    seconds = time.perf_counter() - start
    results, failures = _split(lanes, plan.steps, points)
    cost = {
        "runs": {},
        "seconds": round(seconds, 2),
        "compiling": round(compiling, 2),
        "width": job.width,
        "bytes": size,
        "inputs": [place.name for place in job.group.traced],
    }
    for point, seed in lanes:
        cost["runs"].setdefault(point.id, []).append(seed)
    return _Wave(results, failures, cost)


def _compile(seeds: Seeds, inputs: Any, device: jax.Device) -> Any:
    """Compile a program for a device, before its state is there."""
    at = SingleDeviceSharding(device)
    state, count = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at),
        (jax.eval_shape(seeds.init, inputs), jnp.zeros((), jnp.int32)),
    )
    return seeds.chunk.lower(state, count).compile()


def _split(
    lanes: Sequence[Lane],
    steps: Sequence[int],
    points: Sequence[Mapping[str, np.ndarray]],
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


def _listen(board: _Board, store: Store, bar: Bar, at_work: int) -> None:
    """Keep what devices report until all have ended.

    Raises:
      BaseException: what kept a device from going on.
    """
    while at_work:
        news = board.news.get()
        if news.error is not None:
            raise news.error
        bar.works_on(news.device, news.what)
        if news.steps:
            bar.advance(news.steps)
        if news.wave is not None:
            _keep(news.wave, store)
            bar.ended(len(news.wave.results) + len(news.wave.failures), len(news.wave.failures))
        elif news.what is None:
            at_work -= 1


def _keep(wave: _Wave, store: Store) -> None:
    if wave.failures:
        store.fail(wave.failures)
    if wave.results:
        store.add(wave.results, wave.cost)


def _unfinished(what: str, plan: Plan, store: Store) -> str:
    left = {(point.id, seed) for job in plan.jobs for point, seed in job.lanes} - store.ended()
    return (
        f"{what}: {plan.runs - len(left)} of {plan.runs} runs have ended and are kept: "
        f"--resume {store.folder} runs the others"
    )
