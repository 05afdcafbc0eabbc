"""Seeds over all cores or accelerators: programs of a few seeds each, side by side.

A small program is no faster on several cores: what handing work between threads costs is more than
they give. Several programs are, each on a thread of its own. They are one compiled program, called
from several threads: XLA runs calls of it at the same time, even on one device.

How many seeds a program has depends on their number alone, never on the machine, so that each
seed's numbers are the same bit for bit on one core and on eight: one core runs the same programs,
one after another.
"""

import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.training.loop import Program
from experiments.training.seeds import Seeds, keys_of, over_seeds
from experiments.training.state import LoopState, Metrics

_MOST_PROGRAMS = 8
_FEWEST_SEEDS = 2  # of a program: one alone takes a quarter more time a seed


class Layout(NamedTuple):
    """How seeds are cut into programs, and what these run on.

    Attributes:
      seeds: how many there are.
      width: seeds of a program; the last one is filled up with copies of the last seed.
      devices: one for each program that runs at a time; on CPU the same one for each core.
    """

    seeds: int
    width: int
    devices: tuple[jax.Device, ...]

    @property
    def programs(self) -> int:
        """How many there are."""
        return math.ceil(self.seeds / self.width)

    def describe(self) -> str:
        """Say it in a line."""
        kind = "core" if self.devices[0].platform == "cpu" else "device"
        at_once = min(len(self.devices), self.programs)
        return (
            f"{self.seeds} seeds as {self.programs} programs of {self.width}, over {at_once} "
            f"{kind}{'s' * (at_once > 1)}"
        )


def width_of(seeds: int) -> int:
    """Return how many seeds go into one program on CPU: there are 1, 2, 4 or 8 programs.

    Cores mostly come in such numbers; two seeds share a program at least.
    """
    programs = 1
    while 2 * programs <= min(_MOST_PROGRAMS, seeds // _FEWEST_SEEDS):
        programs *= 2
    return math.ceil(seeds / programs)


def layout(seeds: int, count: int | None = None) -> Layout:
    """Return how seeds are laid out on this machine.

    On CPU the number of programs is that of `width_of`. On accelerators, each has one program of
    its share of the seeds: they are made for wide programs. That has not been tried.

    Args:
      seeds: how many.
      count: of cores or accelerators to use; None: all of this machine.

    Raises:
      ValueError: one line: there are fewer accelerators.
    """
    devices = chosen(count)
    on_cpu = devices[0].platform == "cpu"
    width = width_of(seeds) if on_cpu else math.ceil(seeds / len(devices))
    return Layout(seeds, width, devices)


def chosen(count: int | None = None) -> tuple[jax.Device, ...]:
    """Return a device for each program that runs at a time; on CPU the same one for each core.

    Args:
      count: of cores or accelerators to use; None: all of this machine.

    Raises:
      ValueError: one line: there are fewer accelerators.
    """
    there = jax.local_devices()
    if there[0].platform == "cpu":
        return tuple(there[:1] * (count or _cores()))
    if count is not None and count > len(there):
        raise ValueError(f"devices is {count}, and there are {len(there)}: use as many or fewer")
    return tuple(there[:count])


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class SpreadRun:
    """A `seeds.Run` of several programs; its state is a tuple of theirs until it is saved.

    Resumed, on however many cores, it gives the same numbers bit for bit.
    """

    def __init__(self, program: Program, seeds: Sequence[int], where: Layout) -> None:
        """Make the run; nothing is traced before it is needed."""
        self._program, self._where, self._numbers = program, where, np.asarray(seeds)
        self._compiled: dict[tuple[str, jax.Device], Any] = {}
        self._threads = ThreadPoolExecutor(min(len(where.devices), where.programs))
        self.stops_anywhere = False
        self.stop: Callable[[], bool] = lambda: False
        self.schedule, self.remarks = program.schedule, program.remarks
        self.layout = where.describe()

    @functools.cached_property
    def _seeds(self) -> Seeds:
        """The program, traced when it is first needed: a finished run never needs it."""
        return over_seeds(self._program)

    @property
    def axes(self) -> Any:
        """A LoopState of 0 where a leaf has a seed axis, and None where all seeds share it."""
        return self._seeds.axes

    def init(self) -> Any:
        """Return the states after the warm-up."""
        keys = [
            self._placed(i, keys_of(self._numbers[self._members(i)]))
            for i in range(self._where.programs)
        ]
        return tuple(self._each("init", self._seeds.init, [(each,) for each in keys]))

    def like(self) -> LoopState:
        """Return shapes and dtypes of the state of all seeds, to load a saved one."""
        return self._seeds.like(self._where.seeds)

    def resume(self, state: LoopState) -> Any:
        """Cut a saved state into those of the programs."""
        return tuple(self._cut(state, i) for i in range(self._where.programs))

    def to_save(self, state: Any) -> LoopState:
        """Return the state of all seeds, as it is saved."""

        def join(axis: int | None, *leaves: Any) -> Any:
            if axis is None:
                return leaves[0]
            if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
                data = np.concatenate([jax.random.key_data(leaf) for leaf in leaves])
                kind = jax.random.key_impl(leaves[0])
                return jax.random.wrap_key_data(data[: self._where.seeds], impl=kind)
            return np.concatenate(leaves)[: self._where.seeds]

        return jax.tree.map(join, self.axes, *state, is_leaf=lambda axis: axis is None)

    def chunk(self, state: Any, blocks: int) -> tuple[Any, Metrics]:
        """Run `blocks` blocks and an evaluation; the states are donated. Metrics are `[S]`."""
        counts = [self._placed(i, np.int32(blocks)) for i in range(len(state))]
        done = self._each("chunk", self._seeds.chunk, list(zip(state, counts, strict=True)))
        metrics = [each for _, each in done]
        joined = {
            name: np.concatenate([each[name] for each in metrics])[: self._where.seeds]
            for name in metrics[0]
        }
        return tuple(each for each, _ in done), joined

    def close(self) -> None:
        """Let threads end that have nothing left to do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _each(self, name: str, function: Any, inputs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a jitted function for every program, as many at a time as there are devices."""
        for place, args in enumerate(inputs):
            key = (name, self._device(place))
            if key not in self._compiled:
                self._compiled[key] = function.lower(*args).compile()

        def call(place: int) -> Any:
            compiled = self._compiled[name, self._device(place)]
            return jax.block_until_ready(compiled(*inputs[place]))

        return list(self._threads.map(call, range(len(inputs))))

    def _device(self, place: int) -> jax.Device:
        return self._where.devices[place % len(self._where.devices)]

    def _placed(self, place: int, value: Any) -> Any:
        """Return a value where a program runs."""
        return jax.device_put(value, self._device(place))

    def _members(self, place: int) -> np.ndarray:
        """Return which seeds a program has, by their places among all."""
        first = place * self._where.width
        return np.minimum(np.arange(first, first + self._where.width), self._where.seeds - 1)

    def _cut(self, state: LoopState, place: int) -> LoopState:
        """Return the state of a program, of that of all seeds; a copy, since it is donated."""
        members = self._members(place)

        def take(axis: int | None, leaf: Any) -> Any:
            if leaf is None:
                return None
            own = leaf if axis is None else leaf[members]
            return self._placed(place, jnp.array(own, copy=True))

        return jax.tree.map(take, self.axes, state, is_leaf=lambda axis: axis is None)
