"""Drivers: the runs of a batch, trained from one log point to the next.

There is one driver for each kind of environment: `CompiledDriver` here, and
`host_loop.HostDriver` for environments on the host.
"""

import abc
import contextlib
import functools
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from experiments.training import sharding
from experiments.training.loop import Program
from experiments.training.schedule import Schedule
from experiments.training.seeds import Seeds, map_axes, over_seeds
from experiments.training.state import LoopState, Metrics


class CutShort(Exception):
    """A driver stopped on request between two log points.

    Attributes:
      state: the state; None during the warm-up.
      blocks: blocks since the latest call of `chunk`.
    """

    def __init__(self, state: Any, blocks: int) -> None:
        super().__init__(blocks)
        self.state, self.blocks = state, blocks


class Driver(abc.ABC):
    """S runs of one program; arrays of states and metrics have a leading `[S]`.

    Attributes:
      schedule: log points and counts.
      axes: a state of 0 where a leaf has an axis of runs, and None where all runs share it.
      bytes: memory of inputs, outputs and temporary arrays on the device with most of them, once
        prepared; 0 if unknown.
      compiling: seconds of compilation by `prepare`.
      stop: function that returns whether to stop, set by the caller. A driver on the host then
        raises CutShort, at the latest after an evaluation for the replay; other drivers go on to
        the next log point.
    """

    schedule: Schedule
    axes: Any
    bytes: int = 0
    compiling: float = 0.0

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.stop: Callable[[], bool] = lambda: False

    def prepare(self) -> None:  # noqa: B027
        """Compile the training loop, before any state is allocated."""

    @abc.abstractmethod
    def init(self) -> Any:
        """Return the state after the warm-up."""

    @abc.abstractmethod
    def like(self) -> Any:
        """Return shapes and dtypes of a saved state."""

    @abc.abstractmethod
    def resume(self, saved: Any) -> Any:
        """Return the state to continue from, given a saved state."""

    @abc.abstractmethod
    def chunk(self, state: Any, blocks: int) -> tuple[Any, Metrics]:
        """Run `blocks` blocks and an evaluation; donates the state. Metrics are `[S]`."""

    def to_save(self, state: Any) -> Any:
        """Return the form of a state that is saved."""
        return state

    def close(self) -> None:  # noqa: B027
        """Free resources that are not part of the state."""


class Layout(NamedTuple):
    """The division of S runs into programs.

    Attributes:
      runs: S.
      width: runs in a program; copies of the last run pad the last program.
      devices: one for each concurrent program; on CPU, the same device once per core. A program
        with a mesh uses the devices of its mesh instead, and has all runs.
    """

    runs: int
    width: int
    devices: tuple[jax.Device, ...]

    @property
    def programs(self) -> int:
        """Number of programs."""
        return math.ceil(self.runs / self.width)

    def members(self, place: int) -> np.ndarray:
        """Return the indices of a program's runs."""
        first = place * self.width
        return np.minimum(np.arange(first, first + self.width), self.runs - 1)

    def device(self, place: int) -> jax.Device:
        """Return the device of a program."""
        return self.devices[place % len(self.devices)]


class Programs:
    """Programs that are traced once, and compiled once for each width and device.

    All cores are one device that executes several programs at a time, since threads can share a
    compiled program.
    """

    def __init__(self, most: int) -> None:
        """Keep at most `most` compiled programs."""
        self._most, self._lock = most, threading.Lock()
        self._traced: dict[int, tuple[Program, Seeds]] = {}
        self._compiled: dict[Any, Future[Any]] = {}

    def seeds(self, program: Program, example: Any) -> Seeds:
        """Return the functions of a program, vectorised over runs.

        Args:
          program: the program of one run.
          example: shapes and dtypes of the inputs of its `init`.
        """
        with self._lock:
            if id(program) not in self._traced:
                self._traced[id(program)] = program, over_seeds(program, example)
            return self._traced[id(program)][1]

    def compiled(
        self, program: Program, seeds: Seeds, inputs: Any, device: jax.Device
    ) -> tuple[Any, float]:
        """Return a compiled training loop, and the seconds that this call compiled.

        Args:
          program: the program of one run.
          seeds: as returned by `seeds`.
          inputs: shapes and dtypes of the inputs of `init` of all runs.
          device: the device.
        """
        width = jax.tree.leaves(inputs)[0].shape[0]
        key = (id(program), width, device)
        with self._lock:
            mine = key not in self._compiled
            if mine:
                while len(self._compiled) >= self._most:
                    self._forget(next(iter(self._compiled))[0])
            future = self._compiled.setdefault(key, Future())
        if not mine:  # another thread may still be compiling it
            return future.result(), 0.0
        began = time.perf_counter()
        try:
            future.set_result(_compile(program, seeds, inputs, device))
        except BaseException as error:
            future.set_exception(error)
            raise
        return future.result(), time.perf_counter() - began

    def _forget(self, program: int) -> None:
        """Drop a program and its (larger) trace; running batches keep their references."""
        self._compiled = {key: at for key, at in self._compiled.items() if key[0] != program}
        self._traced.pop(program, None)


def _compile(program: Program, seeds: Seeds, inputs: Any, device: jax.Device) -> Any:
    given = jax.eval_shape(seeds.init, inputs), jax.ShapeDtypeStruct((), jnp.int32)
    at = _places(program, seeds, device)
    placed = jax.tree.map(
        lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at),
        given,
        (at, _shared(program, device)),
    )
    return seeds.chunk.lower(*placed).compile()


def _shared(program: Program, device: jax.Device) -> Any:
    """Return the sharding of inputs that all devices of a program share."""
    if program.mesh is None:
        return SingleDeviceSharding(device)
    return NamedSharding(program.mesh, PartitionSpec())


def _places(program: Program, seeds: Seeds, device: jax.Device) -> Any:
    """Return the sharding of every leaf of a program's state."""
    if program.mesh is None:
        return jax.tree.map(lambda _: SingleDeviceSharding(device), seeds.one)
    return sharding.shardings(program.mesh, seeds.axes, seeds.one)


class CompiledDriver(Driver):
    """Runs whose environments compile: one or several calls of a program.

    The state is a tuple of theirs. A resumed driver gives the same numbers bit for bit, on any
    number of cores.
    """

    def __init__(
        self, program: Program, inputs: Any, where: Layout, programs: Programs | None = None
    ) -> None:
        """Make the driver; tracing starts when it is first needed.

        Args:
          program: the program of one run.
          inputs: inputs of its `init` for all runs, `[S, ...]`.
          where: division of the runs into programs.
          programs: keeps traces and compiled programs, which several drivers may share.
        """
        if program.mesh is not None:
            where = Layout(where.runs, where.runs, where.devices[:1])
        super().__init__(program.schedule)
        self._program, self._inputs, self._where = program, inputs, where
        self._programs = programs or Programs(len(where.devices))
        self._chunks: list[Any] = []

    @functools.cached_property
    def _seeds(self) -> Seeds:
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self._inputs)
        return self._programs.seeds(self._program, example)

    @property
    def axes(self) -> Any:
        return self._seeds.axes

    def prepare(self) -> None:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self._where.width, *x.shape[1:]), x.dtype),
            self._inputs,
        )
        for place in range(self._where.programs):
            device = self._where.device(place)
            chunk, seconds = self._programs.compiled(self._program, self._seeds, shapes, device)
            self._chunks.append(chunk)
            self.compiling += seconds
        places = {self._where.device(place) for place in range(self._where.programs)}
        self.bytes = _bytes_of(self._chunks[0]) * math.ceil(self._where.programs / len(places))
        mesh = self._program.mesh
        if mesh is not None and mesh.devices[0].platform == "cpu":  # which share the memory
            self.bytes *= mesh.size

    def init(self) -> tuple[LoopState, ...]:
        def begin(place: int) -> LoopState:
            members = self._where.members(place)
            inputs = jax.tree.map(lambda x: x[members], self._inputs)
            return self._seeds.init(jax.device_put(inputs, self._at(place)))

        return tuple(self._concurrently(begin))

    def like(self) -> LoopState:
        return self._seeds.like(self._where.runs)

    def resume(self, saved: LoopState) -> tuple[LoopState, ...]:
        """Return copies of the programs' parts of a saved state; `chunk` donates them."""

        def part(place: int, axis: int | None, leaf: Any) -> Any:
            if leaf is None:
                return None
            own = leaf if axis is None else leaf[self._where.members(place)]
            return jax.device_put(jnp.array(own, copy=True), self._where.device(place))

        if self._where.programs == 1 and self._where.width == self._where.runs:
            return (
                jax.device_put(saved, _places(self._program, self._seeds, self._where.device(0))),
            )
        return tuple(
            map_axes(functools.partial(part, place), self.axes, saved)
            for place in range(self._where.programs)
        )

    def to_save(self, state: tuple[LoopState, ...]) -> LoopState:
        runs = self._where.runs

        def join(axis: int | None, *leaves: Any) -> Any:
            if axis is None:
                return leaves[0]
            if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
                data = np.concatenate([jax.random.key_data(leaf) for leaf in leaves])
                kind = jax.random.key_impl(leaves[0])
                return jax.random.wrap_key_data(data[:runs], impl=kind)
            return np.concatenate(leaves)[:runs]

        if len(state) == 1 and self._where.width == runs:
            return state[0]
        return map_axes(join, self.axes, *state)

    def chunk(
        self, state: tuple[LoopState, ...], blocks: int
    ) -> tuple[tuple[LoopState, ...], Metrics]:
        def run(place: int) -> Any:
            count = jax.device_put(np.int32(blocks), self._at(place))
            return jax.block_until_ready(self._chunks[place](state[place], count))

        states, metrics = zip(*self._concurrently(run), strict=True)
        joined = {
            name: np.concatenate([part[name] for part in metrics])[: self._where.runs]
            for name in metrics[0]
        }
        return states, joined

    def _at(self, place: int) -> Any:
        return _shared(self._program, self._where.device(place))

    def _concurrently(self, call: Callable[[int], Any]) -> list[Any]:
        """Call a function with the place of every program, concurrently on the devices."""
        count = self._where.programs
        if count == 1:
            return [call(0)]
        results: dict[int, Any] = {}
        errors: list[BaseException] = []
        places: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(count):
            places.put(place)

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while not errors:
                    place = places.get_nowait()
                    try:
                        results[place] = call(place)
                    except BaseException as error:
                        errors.append(error)

        # Threads of a pool would keep the process alive after a second Ctrl-C.
        workers = min(len(self._where.devices), count)
        threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [results[place] for place in range(count)]


def _bytes_of(compiled: Any) -> int:
    """Return the bytes of a compiled program's inputs, outputs and temporary arrays, or 0."""
    memory = compiled.memory_analysis()
    if memory is None:
        return 0
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes
