"""Many seeds in one program: a Program vmapped over keys, its clocks kept single."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from experiments.training.loop import Program
from experiments.training.once import jit_once
from experiments.training.schedule import Schedule
from experiments.training.state import LoopState, Metrics, a_key
from experiments.training.traced import Traced, until_stable


class Seeds(NamedTuple):
    """A compiled Program over seeds: states and metrics get a leading seed axis `[S]`.

    Leaves of the state that are the same for all seeds, whatever happens (clocks), have no seed
    axis: conditions on them remain branches, and writes at the ring's cursor stay in place.
    """

    init: Callable[[Any], LoopState]  # keys [S], or what else the program's `init` takes
    chunk: Any  # jitted: (LoopState, blocks[]) -> (LoopState, Metrics); donates the state
    axes: Any  # a LoopState of 0 (the leaf has a seed axis) and None (all seeds share it)
    one: Any  # shapes and dtypes of the state of one seed

    def like(self, count: int) -> LoopState:
        """Return shapes and dtypes of the state of so many seeds."""
        shaped = functools.partial(with_axis, size=count)
        return jax.tree.map(
            lambda axis, one: one if axis is None else shaped(one),
            self.axes, self.one, is_leaf=lambda axis: axis is None,
        )  # fmt: skip


class CutShort(Exception):
    """A run was asked to stop and did so between two log points.

    Attributes:
      state: the LoopState there; None during the warm-up.
      blocks: how many since the latest call of `chunk`.
    """

    def __init__(self, state: LoopState | None, blocks: int) -> None:
        super().__init__(blocks)
        self.state, self.blocks = state, blocks


class Run(Protocol):
    """Several seeds of a training run, from one log point to the next.

    Attributes:
      schedule: log points and counts.
      axes: a LoopState of 0 where a leaf has a seed axis, and None where all seeds share it.
      remarks: what the user should know before it runs.
      layout: what it runs on, in a line; empty: one device.
      stops_anywhere: whether it raises CutShort soon after `stop()` turns true, and does not have
        to be waited for until the next log point.
      stop: set by who runs it.
    """

    schedule: Schedule
    axes: Any
    remarks: tuple[str, ...]
    layout: str
    stops_anywhere: bool
    stop: Callable[[], bool]

    def init(self) -> LoopState:
        """Return the state after the warm-up."""
        ...

    def like(self) -> LoopState:
        """Return shapes and dtypes of a state, to load a saved one."""
        ...

    def resume(self, state: LoopState) -> LoopState:
        """Go on from a saved state."""
        ...

    def to_save(self, state: LoopState) -> LoopState:
        """Return a state as it is saved."""
        ...

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; the state is donated. Metrics are `[S]`."""
        ...

    def close(self) -> None:
        """Free what lives beside the state."""
        ...


class CompiledRun:
    """A Run in which everything is one program; resumed, it gives the same numbers bit for bit."""

    def __init__(self, program: Program, seeds: Sequence[int]) -> None:
        self._program, self._numbers = program, list(seeds)
        self._chunk: Any = None  # compiled at the first call
        self.stops_anywhere = False
        self.stop: Callable[[], bool] = lambda: False
        self.schedule, self.remarks, self.layout = program.schedule, program.remarks, ""

    @functools.cached_property
    def _seeds(self) -> Seeds:
        """The program, traced when it is first needed: a finished run never needs it."""
        return over_seeds(self._program)

    @property
    def axes(self) -> Any:
        """A LoopState of 0 where a leaf has a seed axis, and None where all seeds share it."""
        return self._seeds.axes

    def init(self) -> LoopState:
        """Return the state after the warm-up."""
        return self._seeds.init(keys_of(self._numbers))

    def like(self) -> LoopState:
        """Return shapes and dtypes of a state, to load a saved one."""
        return self._seeds.like(len(self._numbers))

    def resume(self, state: LoopState) -> LoopState:
        """Return the state as it is: the environments are in it."""
        return state

    def to_save(self, state: LoopState) -> LoopState:
        """Return the state as it is."""
        return state

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; the state is donated. Metrics are `[S]`."""
        count = np.int32(blocks)
        if self._chunk is None:
            self._chunk = self._seeds.chunk.lower(state, count).compile()
        return self._chunk(state, count)

    def close(self) -> None:
        """There is nothing beside the state."""


def over_seeds(program: Program, example: Any = None) -> Seeds:
    """Vmap and jit a Program; a single seed is an axis of length 1.

    Its functions are traced once, to learn the axes; what is compiled is what was traced.

    Args:
      program: of one seed.
      example: what its `init` takes, or shapes and dtypes of it; None: a key.
    """
    init = Traced(program.init, a_key() if example is None else example)
    chunk = Traced(program.chunk, init.outputs, jax.ShapeDtypeStruct((), jnp.int32))
    axes = _axes(init, chunk, from_outside=False)
    warm_up = jax.vmap(init, out_axes=axes)
    training = jax.vmap(chunk, in_axes=(axes, None), out_axes=(axes, 0))
    # As logs and kept programs name them.
    warm_up.__name__, training.__name__ = "warm_up", "training"
    return Seeds(jit_once(warm_up), jax.jit(training, donate_argnums=0), axes, init.outputs)


@jax.jit
def _keys(seeds: Any) -> Any:
    return jax.vmap(jax.random.key)(seeds)


def keys_of(seeds: Sequence[int]) -> Any:
    """Return the key of each seed, `[S]`."""
    return _keys(np.asarray(seeds, np.int32))


def axes_of(init: Callable[..., Any], step: Callable[..., Any], *inputs: Any) -> Any:
    """Tell which leaves of a loop's state differ between seeds: a pytree of 0 and None (shared).

    A leaf is shared if neither `init` nor `step` ever makes it depend on the key or the inputs.

    Args:
      init: `(key, *inputs)` -> the state before the loop.
      step: `(state, key, *inputs)` -> the next state.
      *inputs: shapes and dtypes of what each seed is given from outside, such as observations.
    """
    first = Traced(init, a_key(), *inputs)
    return _axes(first, Traced(step, first.outputs, a_key(), *inputs), from_outside=True)


def _axes(init: Traced, step: Traced, from_outside: bool) -> Any:
    """Do it with a step whose first output is the state; do its other inputs differ, too?"""
    differ = init.depends([], True)
    differ = until_stable(lambda flags: step.depends(flags, from_outside)[: len(flags)], differ)
    axes = [0 if differs else None for differs in differ]
    return jax.tree.unflatten(jax.tree.structure(init.outputs), axes)


def with_axis(shapes: Any, size: int) -> Any:
    """Return shapes and dtypes with one more axis in front."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), shapes)
