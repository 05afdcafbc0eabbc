"""Many seeds in one program: a Program vmapped over keys, its clocks kept single."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from experiments.environments.types import Array
from experiments.training.loop import Program
from experiments.training.schedule import Schedule
from experiments.training.steps import LoopState, Metrics


class Sweep(NamedTuple):
    """A compiled Program over seeds: states and metrics get a leading seed axis `[S]`.

    Leaves of the state that are the same for all seeds, whatever happens (clocks), have no seed
    axis: conditions on them remain branches, and writes at the ring's cursor stay in place.
    """

    init: Callable[[Array], LoopState]  # keys [S]
    chunk: Callable[[LoopState, Array], tuple[LoopState, Metrics]]  # donates the state


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
      notes: what the user should know before it runs.
      stops_anywhere: whether it raises CutShort soon after `stop()` turns true, and does not have
        to be waited for until the next log point.
      stop: set by who runs it.
    """

    schedule: Schedule
    notes: tuple[str, ...]
    stops_anywhere: bool
    stop: Callable[[], bool]

    def init(self) -> LoopState:
        """Return the state after the warm-up."""

    def like(self) -> LoopState:
        """Return shapes and dtypes of a state, to load a saved one."""

    def resume(self, state: LoopState) -> LoopState:
        """Go on from a saved state."""

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; the state is donated. Metrics are `[S]`."""

    def close(self) -> None:
        """Free what lives beside the state."""


class CompiledRun:
    """A Run in which everything is one program; resumed, it gives the same numbers bit for bit."""

    def __init__(self, program: Program, seeds: Sequence[int]) -> None:
        self._sweep = make_sweep(program)
        self._keys = jax.vmap(jax.random.key)(jnp.asarray(list(seeds)))
        self._chunk: Callable[..., tuple[LoopState, Metrics]] | None = None
        self.stops_anywhere, self.stop = False, lambda: False
        self.schedule, self.notes = program.schedule, program.notes

    def init(self) -> LoopState:
        """Return the state after the warm-up."""
        return self._sweep.init(self._keys)

    def like(self) -> LoopState:
        """Return shapes and dtypes of a state, to load a saved one."""
        return jax.eval_shape(self._sweep.init, self._keys)

    def resume(self, state: LoopState) -> LoopState:
        """Return the state as it is: the environments are in it."""
        return state

    def chunk(self, state: LoopState, blocks: int) -> tuple[LoopState, Metrics]:
        """Run `blocks` blocks and an evaluation; the state is donated. Metrics are `[S]`."""
        blocks = jnp.asarray(blocks, jnp.int32)
        if self._chunk is None:
            self._chunk = self._sweep.chunk.lower(state, blocks).compile()
        return self._chunk(state, blocks)

    def close(self) -> None:
        """There is nothing beside the state."""


def make_sweep(program: Program) -> Sweep:
    """Vmap and jit a Program; one seed is a sweep of one key."""
    axes = seed_axes(program)
    chunk = jax.vmap(program.chunk, in_axes=(axes, None), out_axes=(axes, 0))
    init = jax.vmap(program.init, out_axes=axes)
    return Sweep(jax.jit(init), jax.jit(chunk, donate_argnums=0))


def seed_axes(program: Program) -> Any:
    """Tell which leaves of the state differ between seeds: a LoopState of 0 and None (shared).

    A leaf is shared if neither `init` nor `chunk` ever makes it depend on the key.
    """
    one = jnp.ones((), jnp.int32)
    return axes_of(program.init, lambda state, key: program.chunk(state, one)[0])


def axes_of(init: Callable[[Array], Any], step: Callable[[Any, Array], Any]) -> Any:
    """Tell which leaves of a loop's state depend on its key: a pytree of 0 and None (they do not).

    JAX knows this when it batches a loop whose carry is the state; a function with a batching rule
    of its own, which changes nothing, is asked what it was told.

    Args:
      init: a key -> the state before the loop.
      step: a state and the key -> the next state.
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

    def run(key: Array) -> Any:
        def body(state: Any, _):
            return listen(step(listen(state), key)), None

        return jax.lax.scan(body, listen(init(key)), length=1)[0]

    keys = jax.random.split(jax.random.key(0), 2)
    jax.eval_shape(jax.vmap(run), keys)
    batched = jax.tree.map(lambda *ever: any(ever), *told)
    return jax.tree.map(lambda differs: 0 if differs else None, batched)
