"""A conditional for branches that few elements of a vmapped batch take.

Under `jax.vmap`, a batched condition turns `jax.lax.cond` into a selection: all batch elements
always compute both branches. This is too expensive for an operation on a whole buffer that only one
batch element in a hundred requires.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jax.extend.core import jaxpr_as_fun

from jaxreplay._internal.tracing import varying
from jaxreplay.types import Array

Tree = TypeVar("Tree")


def cond_if_any(due: Array, change: Callable[..., Tree], tree: Tree, *others: Any) -> Tree:
    """Return `change(tree, *others)` if `due`, otherwise `tree`.

    Under vmap, nested or not, `change` runs sequentially for the batch elements whose `due` is
    true, and does not run if there are none. Leaves that `change` returns unchanged are not copied.
    Outside of `jit`, each `change` is compiled once: do not define a new function for every call.

    Args:
      due: `[]` bool.
      change: `(tree, *others) -> tree`, which preserves all shapes and dtypes.
      tree: pytree of arrays.
      *others: pytrees of arrays that `change` reads.

    Raises:
      ValueError: If `change` closes over a traced array.
    """
    given = jax.tree.leaves((due, tree, others))
    if isinstance(change, Hashable) and not any(isinstance(x, Tracer) for x in given):
        return _compiled(change, due, tree, *others)
    return _cond_if_any(change, due, tree, *others)


def _cond_if_any(change: Callable[..., Tree], due: Array, tree: Tree, *others: Any) -> Tree:
    leaves, treedef = jax.tree.flatten(tree)
    inputs = [*leaves, *jax.tree.leaves(others)]
    traced = jax.make_jaxpr(change)(tree, *others)
    if any(isinstance(x, Tracer) for x in traced.consts):
        raise ValueError("change closes over traced arrays: pass them as arguments")
    changed = [
        place
        for place, (new, old) in enumerate(
            zip(traced.jaxpr.outvars, traced.jaxpr.invars, strict=False)
        )
        if new is not old
    ]
    run = jaxpr_as_fun(traced)

    def branch(*inputs: Array) -> list[Array]:
        after = run(*inputs)
        return varying([after[place] for place in changed])

    after = _call(branch, changed)(due, *inputs)
    for place, leaf in zip(changed, after, strict=True):
        leaves[place] = leaf
    return jax.tree.unflatten(treedef, leaves)


# Every call of `_call` creates new functions, which JAX would recompile without this `jit`.
_compiled = jax.jit(_cond_if_any, static_argnums=0)


def _call(branch: Callable[..., list[Array]], changed: Sequence[int]) -> Callable[..., list[Array]]:
    """Return a function `(due, *inputs) -> changed leaves` with a custom batching rule."""

    @custom_vmap
    def call(due: Array, *inputs: Array) -> list[Array]:
        kept = varying([inputs[place] for place in changed])
        return jax.lax.cond(due, lambda: branch(*inputs), lambda: kept)

    @call.def_vmap
    def _(size: int, batched: list[bool], due: Array, *inputs: Array) -> Any:
        differs, *batched = batched
        if not differs:  # `due` applies to the whole batch
            axes = [0 if each else None for each in batched]
            kept = varying(_spread(inputs, batched, changed, size))
            out = jax.lax.cond(
                due, lambda: jax.vmap(branch, axes, axis_size=size)(*inputs), lambda: kept
            )
        elif size == 1:
            own = [x[0] if each else x for x, each in zip(inputs, batched, strict=True)]
            out = [x[None] for x in call(due[0], *own)]
        else:
            out = _programs(branch, changed, size, batched)(due, *inputs)
        return out, [True] * len(changed)

    return call


def _programs(
    branch: Callable[..., list[Array]], changed: Sequence[int], size: int, batched: Sequence[bool]
) -> Callable[..., list[Array]]:
    """Return a function `(due[size], *inputs)` for a batch, which may be vmapped again."""

    @custom_vmap
    def call(due: Array, *inputs: Array) -> list[Array]:
        return _one_by_one(branch, changed, size, batched, due, inputs)

    @call.def_vmap
    def _(outer: int, outer_batched: list[bool], due: Array, *inputs: Array) -> Any:
        total, (differs, *outer_batched) = outer * size, outer_batched

        def merged(x: Array, by_outer: bool, by_inner: bool) -> Array:
            if not (by_outer or by_inner):
                return x
            x = x if by_outer else x[None]
            x = x if by_inner else x[:, None]
            inner = x.shape[2:]
            return jnp.broadcast_to(x, (outer, size, *inner)).reshape(total, *inner)

        own = [either or other for either, other in zip(outer_batched, batched, strict=True)]
        flat = [merged(*each) for each in zip(inputs, outer_batched, batched, strict=True)]
        out = _programs(branch, changed, total, own)(merged(due, differs, True), *flat)
        return [x.reshape(outer, size, *x.shape[1:]) for x in out], [True] * len(changed)

    return call


def _one_by_one(
    branch: Callable[..., list[Array]],
    changed: Sequence[int],
    size: int,
    batched: Sequence[bool],
    due: Array,
    inputs: Sequence[Array],
) -> list[Array]:
    kept = varying(_spread(inputs, batched, changed, size))

    def turn(number: Array, leaves: list[Array]) -> list[Array]:
        def change() -> list[Array]:
            own = [x[number] if each else x for x, each in zip(inputs, batched, strict=True)]
            after = branch(*own)
            return [old.at[number].set(new) for old, new in zip(leaves, after, strict=True)]

        return jax.lax.cond(due[number], change, lambda: leaves)

    def turns() -> list[Array]:
        return jax.lax.fori_loop(0, size, turn, kept)

    return jax.lax.cond(due.any(), turns, lambda: kept)


def _spread(
    inputs: Sequence[Array], batched: Sequence[bool], places: Sequence[int], size: int
) -> list[Array]:
    """Select the inputs with indices `places`, and broadcast each to a leading batch axis."""
    return [
        inputs[place]
        if batched[place]
        else jnp.broadcast_to(inputs[place], (size, *inputs[place].shape))
        for place in places
    ]
