"""Many seeds in one program: a Program vmapped over keys, its clocks kept single."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from experiments.environments.types import Array
from experiments.training.loop import Program
from experiments.training.schedule import Schedule
from experiments.training.state import LoopState, Metrics


class Seeds(NamedTuple):
    """A compiled Program over seeds: states and metrics get a leading seed axis `[S]`.

    Leaves of the state that are the same for all seeds, whatever happens (clocks), have no seed
    axis: conditions on them remain branches, and writes at the ring's cursor stay in place.
    """

    init: Callable[[Array], LoopState]  # keys [S]
    chunk: Any  # jitted: (LoopState, blocks[]) -> (LoopState, Metrics); donates the state
    axes: Any  # a LoopState of 0 (the leaf has a seed axis) and None (all seeds share it)


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
      stops_anywhere: whether it raises CutShort soon after `stop()` turns true, and does not have
        to be waited for until the next log point.
      stop: set by who runs it.
    """

    schedule: Schedule
    axes: Any
    remarks: tuple[str, ...]
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

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; the state is donated. Metrics are `[S]`."""
        ...

    def close(self) -> None:
        """Free what lives beside the state."""
        ...


class CompiledRun:
    """A Run in which everything is one program; resumed, it gives the same numbers bit for bit."""

    def __init__(self, program: Program, seeds: Sequence[int]) -> None:
        self._seeds = over_seeds(program)
        self._keys = jax.vmap(jax.random.key)(jnp.asarray(list(seeds)))
        self._chunk: Any = None  # compiled at the first call
        self.stops_anywhere = False
        self.stop: Callable[[], bool] = lambda: False
        self.axes = self._seeds.axes
        self.schedule, self.remarks = program.schedule, program.remarks

    def init(self) -> LoopState:
        """Return the state after the warm-up."""
        return self._seeds.init(self._keys)

    def like(self) -> LoopState:
        """Return shapes and dtypes of a state, to load a saved one."""
        return jax.eval_shape(self._seeds.init, self._keys)

    def resume(self, state: LoopState) -> LoopState:
        """Return the state as it is: the environments are in it."""
        return state

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; the state is donated. Metrics are `[S]`."""
        count = jnp.asarray(blocks, jnp.int32)
        if self._chunk is None:
            self._chunk = self._seeds.chunk.lower(state, count).compile()
        return self._chunk(state, count)

    def close(self) -> None:
        """There is nothing beside the state."""


def over_seeds(program: Program) -> Seeds:
    """Vmap and jit a Program; a single seed is an axis of length 1."""
    axes = seed_axes(program)
    chunk = jax.vmap(program.chunk, in_axes=(axes, None), out_axes=(axes, 0))
    init = jax.vmap(program.init, out_axes=axes)
    return Seeds(jax.jit(init), jax.jit(chunk, donate_argnums=0), axes)


def seed_axes(program: Program) -> Any:
    """Tell which leaves of the state differ between seeds: a LoopState of 0 and None (shared).

    A leaf is shared if neither `init` nor `chunk` ever makes it depend on the key.
    """
    one = jnp.ones((), jnp.int32)
    return axes_of(program.init, lambda state, key: program.chunk(state, one)[0])


def axes_of(init: Callable[..., Any], step: Callable[..., Any], *inputs: Any) -> Any:
    """Tell which leaves of a loop's state differ between seeds: a pytree of 0 and None (shared).

    JAX knows this when it batches a loop whose carry is the state; a function with a batching rule
    of its own, which changes nothing, is asked what it was told. Nothing is computed.

    Args:
      init: `(key, *inputs)` -> the state before the loop.
      step: `(state, key, *inputs)` -> the next state.
      *inputs: shapes and dtypes of what each seed is given from outside, such as observations.
    """
    told: list[Any] = []

    @custom_vmap
    def listen(state: Any) -> Any:
        return state

    @listen.def_vmap
    def _(axis_size: int, in_batched, state: Any):
        del axis_size
        told.append(in_batched[0])
        return state, in_batched[0]

    def run(key: Array, *inputs: Any) -> Any:
        def body(state: Any, _):
            return listen(step(listen(state), key, *inputs)), None

        return jax.lax.scan(body, listen(init(key, *inputs)), length=1)[0]

    keys = jax.random.split(jax.random.key(0), 2)
    jax.eval_shape(jax.vmap(run), keys, *with_axis(inputs, len(keys)))
    batched = jax.tree.map(lambda *ever: any(ever), *told)
    return jax.tree.map(lambda differs: 0 if differs else None, batched)


def with_axis(shapes: Any, size: int) -> Any:
    """Return shapes and dtypes with one more axis in front."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), shapes)
