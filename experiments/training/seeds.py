"""Many seeds in one program: a Program vmapped over keys, with shared step counters."""

import abc
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.training.compiling import Traced, jit_once, until_stable
from experiments.training.loop import Program
from experiments.training.schedule import Schedule
from experiments.training.spread import Layout
from experiments.training.state import LoopState, Metrics, a_key


class Seeds(NamedTuple):
    """A compiled Program over seeds: states and metrics have a leading seed axis `[S]`.

    Leaves of the state that are always equal for all seeds (step counters) have no seed axis:
    conditions on them remain branches, and writes at the ring's cursor stay in place.
    """

    init: Callable[[Any], LoopState]  # keys [S], or other inputs of the program's `init`
    chunk: Any  # jitted: (LoopState, blocks[]) -> (LoopState, Metrics); donates the state
    axes: Any  # a LoopState of 0 (the leaf has a seed axis) and None (all seeds share it)
    one: Any  # shapes and dtypes of the state of one seed

    def like(self, count: int) -> LoopState:
        """Return shapes and dtypes of the state of `count` seeds."""
        return _map_axes(
            lambda axis, one: one if axis is None else with_axis(one, count), self.axes, self.one
        )


class CutShort(Exception):
    """A run stopped on request between two log points.

    Attributes:
      state: the LoopState; None during the warm-up.
      blocks: blocks since the latest call of `chunk`.
    """

    def __init__(self, state: LoopState | None, blocks: int) -> None:
        super().__init__(blocks)
        self.state, self.blocks = state, blocks


class Run(abc.ABC):
    """Several seeds of a training run, from one log point to the next.

    Attributes:
      schedule: log points and counts.
      remarks: messages for the user before the run, such as the layout of several programs.
      axes: a LoopState of 0 where a leaf has a seed axis, and None where all seeds share it.
      stops_anywhere: whether it raises CutShort soon after `stop()` returns True, at the latest
        after an evaluation for the replay; otherwise callers wait for the next log point.
      stop: function that returns whether to stop, set by the caller.
    """

    schedule: Schedule
    remarks: tuple[str, ...] = ()
    axes: Any
    stops_anywhere = False

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.stop: Callable[[], bool] = lambda: False

    @abc.abstractmethod
    def init(self) -> Any:
        """Return the state after the warm-up."""

    @abc.abstractmethod
    def like(self) -> LoopState:
        """Return shapes and dtypes of a saved state."""

    @abc.abstractmethod
    def resume(self, state: LoopState) -> Any:
        """Return the state to continue from, given a saved state."""

    @abc.abstractmethod
    def chunk(self, state: Any, blocks: int) -> tuple[Any, Metrics]:
        """Run `blocks` blocks and an evaluation; donates the state. Metrics are `[S]`."""

    def to_save(self, state: Any) -> LoopState:
        """Return the form of a state that is saved."""
        return state

    def close(self) -> None:  # noqa: B027
        """Free resources that are not part of the state."""


class CompiledRun(Run):
    """A Run of one or several calls of a program, each with some of the seeds.

    Its state is a tuple of theirs. A resumed run gives the same numbers bit for bit, on any number
    of cores.
    """

    def __init__(self, program: Program, seeds: Sequence[int], where: Layout | None = None) -> None:
        """Make the run; tracing starts when it is first needed.

        The default layout is one program on the first device.
        """
        if where is None:
            where = Layout(len(seeds), len(seeds), tuple(jax.local_devices()[:1]))
        super().__init__(program.schedule)
        self.remarks = (where.describe(),) if where.programs > 1 else ()
        self._program, self._where, self._numbers = program, where, np.asarray(seeds)
        self._compiled: dict[tuple[str, jax.Device], Any] = {}
        self._threads = ThreadPoolExecutor(min(len(where.devices), where.programs))

    @functools.cached_property
    def _seeds(self) -> Seeds:
        """The program over seeds; a finished run never traces it."""
        return over_seeds(self._program)

    @property
    def axes(self) -> Any:
        return self._seeds.axes

    def init(self) -> tuple[LoopState, ...]:
        places = range(self._where.programs)
        keys = [self._placed(i, keys_of(self._numbers[self._members(i)])) for i in places]
        return tuple(self._each("init", self._seeds.init, [(each,) for each in keys]))

    def like(self) -> LoopState:
        return self._seeds.like(self._where.seeds)

    def resume(self, state: LoopState) -> tuple[LoopState, ...]:
        """Return copies of the programs' parts of a saved state; `chunk` donates them."""

        def part(place: int, axis: int | None, leaf: Any) -> Any:
            if leaf is None:
                return None
            own = leaf if axis is None else leaf[self._members(place)]
            return self._placed(place, jnp.array(own, copy=True))

        if self._where.programs == 1:
            return (state,)
        return tuple(
            _map_axes(functools.partial(part, place), self.axes, state)
            for place in range(self._where.programs)
        )

    def to_save(self, state: tuple[LoopState, ...]) -> LoopState:
        def join(axis: int | None, *leaves: Any) -> Any:
            if axis is None:
                return leaves[0]
            if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
                data = np.concatenate([jax.random.key_data(leaf) for leaf in leaves])
                kind = jax.random.key_impl(leaves[0])
                return jax.random.wrap_key_data(data[: self._where.seeds], impl=kind)
            return np.concatenate(leaves)[: self._where.seeds]

        return state[0] if len(state) == 1 else _map_axes(join, self.axes, *state)

    def chunk(
        self, state: tuple[LoopState, ...], blocks: int
    ) -> tuple[tuple[LoopState, ...], Metrics]:
        counts = [self._placed(i, np.int32(blocks)) for i in range(len(state))]
        done = self._each("chunk", self._seeds.chunk, list(zip(state, counts, strict=True)))
        states, metrics = zip(*done, strict=True)
        joined = {
            name: np.concatenate([each[name] for each in metrics])[: self._where.seeds]
            for name in metrics[0]
        }
        return states, joined

    def close(self) -> None:
        """Shut down the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _each(self, name: str, function: Any, inputs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a jitted function for every program, concurrently on the devices."""
        for place, args in enumerate(inputs):
            key = (name, self._device(place))
            if key not in self._compiled:
                self._compiled[key] = function.lower(*args).compile()

        def call(place: int) -> Any:
            compiled = self._compiled[name, self._device(place)]
            return jax.block_until_ready(compiled(*inputs[place]))

        places = range(len(inputs))
        return list(map(call, places) if len(places) == 1 else self._threads.map(call, places))

    def _device(self, place: int) -> jax.Device:
        return self._where.devices[place % len(self._where.devices)]

    def _placed(self, place: int, value: Any) -> Any:
        """Return a value on the device of a program."""
        return jax.device_put(value, self._device(place))

    def _members(self, place: int) -> np.ndarray:
        """Return the indices of a program's seeds."""
        first = place * self._where.width
        return np.minimum(np.arange(first, first + self._where.width), self._where.seeds - 1)


def over_seeds(program: Program, example: Any = None) -> Seeds:
    """Vmap and jit a Program; a single seed is an axis of length 1.

    The functions are traced once, to find the axes; the compiled program is the traced one.

    Args:
      program: program of one seed.
      example: inputs of its `init`, or their shapes and dtypes; by default, a key.
    """
    init = Traced(program.init, a_key() if example is None else example)
    chunk = Traced(program.chunk, init.outputs, jax.ShapeDtypeStruct((), jnp.int32))
    axes = _axes(init, chunk, from_outside=False)
    warm_up = jax.vmap(init, out_axes=axes)
    training = jax.vmap(chunk, in_axes=(axes, None), out_axes=(axes, 0))
    # Logs and the compilation cache show these names.
    warm_up.__name__, training.__name__ = "warm_up", "training"
    return Seeds(jit_once(warm_up), jax.jit(training, donate_argnums=0), axes, init.outputs)


@jax.jit
def _keys(seeds: Any) -> Any:
    return jax.vmap(jax.random.key)(seeds)


def keys_of(seeds: Sequence[int] | np.ndarray) -> Any:
    """Return the key of each seed, `[S]`."""
    return _keys(np.asarray(seeds, np.int32))


def axes_of(init: Callable[..., Any], step: Callable[..., Any], *inputs: Any) -> Any:
    """Return a pytree of 0 (a leaf of a loop's state differs between seeds) and None (shared).

    A leaf is shared if neither `init` nor `step` makes it depend on the key or the inputs.

    Args:
      init: `(key, *inputs)` -> the state before the loop.
      step: `(state, key, *inputs)` -> the next state.
      *inputs: shapes and dtypes of inputs that differ between seeds, such as observations.
    """
    first = Traced(init, a_key(), *inputs)
    return _axes(first, Traced(step, first.outputs, a_key(), *inputs), from_outside=True)


def _axes(init: Traced, step: Traced, from_outside: bool) -> Any:
    """Return the axes; `from_outside`: whether further inputs of `step` differ between seeds."""
    differ = init.depends([], True)
    differ = until_stable(lambda flags: step.depends(flags, from_outside)[: len(flags)], differ)
    axes = [0 if differs else None for differs in differ]
    return jax.tree.unflatten(jax.tree.structure(init.outputs), axes)


def jit_over_seeds(function: Callable[..., Any], axes: Any, out_axes: Any) -> Any:
    """Vmap over seeds and jit `function(state, *others)`, donating the state.

    `axes` are those of the state; all other inputs have a seed axis.
    """

    def mapped(state: Any, *others: Any) -> Any:
        return jax.vmap(function, (axes, *[0] * len(others)), out_axes)(state, *others)

    return jax.jit(mapped, donate_argnums=0)


def with_axis(shapes: Any, size: int) -> Any:
    """Return shapes and dtypes with an additional leading axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), shapes)


def _map_axes(function: Callable[..., Any], axes: Any, *trees: Any) -> Any:
    return jax.tree.map(function, axes, *trees, is_leaf=lambda axis: axis is None)
