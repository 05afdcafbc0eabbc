"""Many seeds in one compiled program: a Program vmapped over keys, with shared step counters."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.training.compiling import Traced, differing, jit_once
from experiments.training.loop import Program
from experiments.training.state import LoopState, a_key


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
        return map_axes(
            lambda axis, one: one if axis is None else with_axis(one, count), self.axes, self.one
        )


def over_seeds(program: Program, example: Any = None) -> Seeds:
    """Vmap and jit a Program; a single seed is an axis of length 1.

    The functions are traced once, to find the axes; the compiled program is the traced one.

    Args:
      program: program of one seed.
      example: inputs of the program's `init`, or their shapes and dtypes; by default, a key.
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
    axes = [0 if differs else None for differs in differing(init, step, from_outside)]
    return jax.tree.unflatten(jax.tree.structure(init.outputs), axes)


def jit_over_seeds(function: Callable[..., Any], axes: Any, out_axes: Any) -> Any:
    """Vmap over seeds and jit `function(state, *others)`, donating the state.

    `axes` are the axes of the state; all other inputs have a seed axis.
    """

    def mapped(state: Any, *others: Any) -> Any:
        return jax.vmap(function, (axes, *[0] * len(others)), out_axes)(state, *others)

    return jax.jit(mapped, donate_argnums=0)


def with_axis(shapes: Any, size: int) -> Any:
    """Return shapes and dtypes with an additional leading axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), shapes)


def map_axes(function: Callable[..., Any], axes: Any, *trees: Any) -> Any:
    """Map `function(axis, *leaves)` over the leaves of trees and their axes, which may be None."""
    return jax.tree.map(function, axes, *trees, is_leaf=lambda axis: axis is None)
