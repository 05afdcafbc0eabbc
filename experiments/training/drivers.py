"""Drivers, which train several runs together, from one log point to the next.

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
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from experiments.training import sharding
from experiments.training.loop import Program
from experiments.training.schedule import Schedule
from experiments.training.seeds import Seeds, map_axes, over_seeds
from experiments.training.state import LoopState, Metrics


class CutShort(Exception):
    """Raised by a driver that stops on request between two log points.

    Attributes:
      state: state of the runs at the stop; None during the warm-up.
      blocks: number of blocks that the latest call of `chunk` has completed.
    """

    def __init__(self, state: Any, blocks: int) -> None:
        super().__init__(blocks)
        self.state, self.blocks = state, blocks


class Driver(abc.ABC):
    """S runs that are trained together; arrays of states and metrics have a leading `[S]`.

    Attributes:
      schedule: log points and counts.
      axes: pytree like the state: 0 for a leaf with an axis of runs, None for a leaf that all runs
        share.
      bytes: memory of inputs, outputs and temporary arrays on the device that holds most of them,
        known after `prepare`; 0 if unknown.
      compiling: seconds of compilation by `prepare`.
      stop: function, set by the caller, that returns whether to stop. If it returns true, a driver
        of environments on the host raises CutShort, at the latest after an evaluation for the
        replay. Other drivers continue to the next log point.
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
        """Run `blocks` blocks of training and an evaluation; return state and metrics `[S]`.

        The argument `state` is donated.
        """

    def to_save(self, state: Any) -> Any:
        """Return a state in the form in which it is saved."""
        return state

    def close(self) -> None:  # noqa: B027
        """Free resources that are not part of the state."""


Place: TypeAlias = jax.Device | Mesh


class Layout(NamedTuple):
    """The division of S runs into groups, each of which is trained by one call of a program.

    Attributes:
      runs: S.
      width: runs in a group; copies of the last run pad the last group.
      places: one for each group that is trained at the same time: a device (on CPU, the same
        device once per core), or the mesh over which every run is sharded.
    """

    runs: int
    width: int
    places: tuple[Place, ...]

    @property
    def programs(self) -> int:
        """Number of groups, each with a call of the program."""
        return math.ceil(self.runs / self.width)

    def members(self, number: int) -> np.ndarray:
        """Return the indices `[width]` of the runs in a group."""
        first = number * self.width
        return np.minimum(np.arange(first, first + self.width), self.runs - 1)

    def place(self, number: int) -> Place:
        """Return the device or mesh on which a group is trained."""
        return self.places[number % len(self.places)]


class Programs:
    """A store of programs that are traced once, and compiled once for each width and place.

    On CPU, all cores are one device, which executes several programs at a time: threads can share
    a compiled program.
    """

    def __init__(self, most: int) -> None:
        """Keep at most `most` compiled programs."""
        self._most, self._lock = most, threading.Lock()
        self._traced: dict[int, tuple[Program, Seeds]] = {}
        self._compiled: dict[Any, Future[Any]] = {}

    def seeds(self, program: Program, example: Any) -> Seeds:
        """Return the functions of a program, vmapped over runs.

        Args:
          program: the program of one run.
          example: shapes and dtypes of the inputs of the program's `init`, for one run.
        """
        with self._lock:
            if id(program) not in self._traced:
                self._traced[id(program)] = program, over_seeds(program, example)
            return self._traced[id(program)][1]

    def compiled(
        self, program: Program, seeds: Seeds, inputs: Any, place: Place
    ) -> tuple[Any, float]:
        """Return a compiled training loop, and the seconds that this call spent on compilation.

        Args:
          program: the program of one run.
          seeds: as returned by `seeds`.
          inputs: shapes and dtypes of the inputs of `init` of all runs.
          place: device or mesh that runs the loop.
        """
        width = jax.tree.leaves(inputs)[0].shape[0]
        key = (id(program), width, place)
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
            future.set_result(_compile(seeds, inputs, place))
        except BaseException as error:
            future.set_exception(error)
            raise
        return future.result(), time.perf_counter() - began

    def _forget(self, program: int) -> None:
        """Drop a program's compiled loops and its trace; drivers keep what they are running."""
        self._compiled = {key: at for key, at in self._compiled.items() if key[0] != program}
        self._traced.pop(program, None)


def _compile(seeds: Seeds, inputs: Any, place: Place) -> Any:
    given = jax.eval_shape(seeds.init, inputs), jax.ShapeDtypeStruct((), jnp.int32)
    placed = jax.tree.map(
        lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at),
        given,
        (_of_state(seeds, place), _of_inputs(place)),
    )
    return seeds.chunk.lower(*placed).compile()


def _of_inputs(place: Place) -> Any:
    """Return the sharding of inputs, which all devices of a place share."""
    if isinstance(place, Mesh):
        return NamedSharding(place, PartitionSpec())
    return SingleDeviceSharding(place)


def _of_state(seeds: Seeds, place: Place) -> Any:
    """Return the sharding of every leaf of a program's state."""
    if isinstance(place, Mesh):
        return sharding.shardings(place, seeds.axes, seeds.one)
    return jax.tree.map(lambda _: SingleDeviceSharding(place), seeds.one)


class CompiledDriver(Driver):
    """A driver of runs whose environments compile, in one or several groups (see `Layout`).

    Its state is a tuple with the state of each group. A resumed driver gives the same numbers bit
    for bit, on any number of cores.
    """

    def __init__(
        self, program: Program, inputs: Any, where: Layout, programs: Programs | None = None
    ) -> None:
        """Make the driver; tracing starts when it is first needed.

        Args:
          program: the program of one run.
          inputs: inputs of the program's `init` for all runs, `[S, ...]`.
          where: division of the runs into groups, and their devices.
          programs: store of traces and compiled programs, which several drivers may share; None
            makes a new one.
        """
        super().__init__(program.schedule)
        self._program, self._inputs, self._where = program, inputs, where
        self._programs = programs or Programs(len(where.places))
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
        places = [self._where.place(number) for number in range(self._where.programs)]
        for place in places:
            chunk, seconds = self._programs.compiled(self._program, self._seeds, shapes, place)
            self._chunks.append(chunk)
            self.compiling += seconds
        self.bytes = _bytes_of(self._chunks[0]) * math.ceil(len(places) / len(set(places)))
        first = places[0]
        if isinstance(first, Mesh) and first.devices[0].platform == "cpu":  # which share the memory
            self.bytes *= first.size

    def init(self) -> tuple[LoopState, ...]:
        def begin(number: int) -> LoopState:
            members = self._where.members(number)
            inputs = jax.tree.map(lambda x: x[members], self._inputs)
            return self._seeds.init(jax.device_put(inputs, self._at(number)))

        return tuple(self._concurrently(begin))

    def like(self) -> LoopState:
        return self._seeds.like(self._where.runs)

    def resume(self, saved: LoopState) -> tuple[LoopState, ...]:
        """Return copies of each group's part of a saved state; `chunk` donates them."""

        def part(number: int, axis: int | None, leaf: Any, at: Any) -> Any:
            if leaf is None:
                return None
            own = leaf if axis is None else leaf[self._where.members(number)]
            return jax.device_put(jnp.array(own, copy=True), at)

        at = [_of_state(self._seeds, self._where.place(n)) for n in range(self._where.programs)]
        if len(at) == 1 and self._where.width == self._where.runs:  # without a second copy
            return (jax.device_put(saved, at[0]),)
        return tuple(
            map_axes(functools.partial(part, number), self.axes, saved, own)
            for number, own in enumerate(at)
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
        def run(number: int) -> Any:
            count = jax.device_put(np.int32(blocks), self._at(number))
            return jax.block_until_ready(self._chunks[number](state[number], count))

        states, metrics = zip(*self._concurrently(run), strict=True)
        joined = {
            name: np.concatenate([part[name] for part in metrics])[: self._where.runs]
            for name in metrics[0]
        }
        return states, joined

    def _at(self, number: int) -> Any:
        return _of_inputs(self._where.place(number))

    def _concurrently(self, call: Callable[[int], Any]) -> list[Any]:
        """Call a function with the number of each group, concurrently; return results in order."""
        count = self._where.programs
        if count == 1:
            return [call(0)]
        results: dict[int, Any] = {}
        errors: list[BaseException] = []
        numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(count):
            numbers.put(number)

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while not errors:
                    number = numbers.get_nowait()
                    try:
                        results[number] = call(number)
                    except BaseException as error:
                        errors.append(error)

        # Threads of a pool would keep the process alive after a second Ctrl-C.
        workers = min(len(self._where.places), count)
        threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [results[number] for number in range(count)]


def _bytes_of(compiled: Any) -> int:
    """Return the bytes of a compiled program's inputs, outputs and temporaries; 0 if unknown."""
    memory = compiled.memory_analysis()
    if memory is None:
        return 0
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes
