"""A conditional for branches that few elements of a vmapped batch take.

Under `jax.vmap`, a batched condition turns `jax.lax.cond` into a selection: all batch elements
always compute both branches. This is too expensive for an operation on a whole buffer that only one
batch element in a hundred requires.
"""

import functools
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


def cond_if_any(due: Array, change: Callable[..., Tree], tree: Tree, *extra: Any) -> Tree:
    """Return `change(tree, *extra)` if `due`, otherwise `tree`.

    Under vmap, nested or not, `change` runs sequentially for the batch elements whose `due` is
    true, and does not run if there are none. Leaves that `change` returns unchanged are not copied.
    Outside of `jit`, each `change` is compiled once: do not define a new function for every call.

    Args:
      due: `[]` bool.
      change: `(tree, *extra) -> tree`, which preserves all shapes and dtypes.
      tree: pytree of arrays.
      *extra: pytrees of arrays that `change` reads.

    Raises:
      ValueError: If `change` closes over a traced array.
    """
    given = jax.tree.leaves((due, tree, extra))
    if isinstance(change, Hashable) and not any(isinstance(x, Tracer) for x in given):
        return _compiled(change, due, tree, *extra)
    return _cond_if_any(change, due, tree, *extra)


def cond_on_schedule(due: Array, change: Callable[[Tree], Tree], tree: Tree) -> Tree:
    """Return `change(tree)` if `due`, otherwise `tree`, which is not copied.

    The condition must be the same for all elements of a vmapped batch, such as a condition on a
    step counter. Otherwise, every element always computes `change`.

    Args:
      due: `[]` bool.
      change: `(tree) -> tree`, which preserves all shapes and dtypes. Outside of `jit`, `change` is
        compiled once: do not define a new function for every call.
      tree: pytree of arrays.
    """
    if isinstance(due, Tracer):
        # XLA copies the arrays that a conditional passes on, but not those that a loop carries.
        turns = varying(due.astype(jnp.int32))
        return jax.lax.fori_loop(0, turns, lambda _, tree: change(tree), tree)
    return jax.jit(change)(tree) if due else tree


def _cond_if_any(change: Callable[..., Tree], due: Array, tree: Tree, *extra: Any) -> Tree:
    leaves, treedef = jax.tree.flatten(tree)
    inputs = [*leaves, *jax.tree.leaves(extra)]
    traced = jax.make_jaxpr(change)(tree, *extra)
    if any(isinstance(x, Tracer) for x in traced.consts):
        raise ValueError("`change` closes over traced arrays: pass the arrays as arguments")
    pairs = zip(traced.jaxpr.outvars, traced.jaxpr.invars, strict=False)
    changed = [place for place, (new, old) in enumerate(pairs) if new is not old]
    run = jaxpr_as_fun(traced)

    def branch(*inputs: Array) -> list[Array]:
        after = run(*inputs)
        return varying([after[place] for place in changed])

    # A single decision is a batch of size 1.
    after = _for_each(branch, changed, 1, [False] * len(inputs))(due[None], *inputs)
    for place, leaf in zip(changed, after, strict=True):
        leaves[place] = leaf[0]
    return jax.tree.unflatten(treedef, leaves)


# Every call of `_for_each` creates new functions, which JAX would recompile without this `jit`.
_compiled = jax.jit(_cond_if_any, static_argnums=0)


def _for_each(
    branch: Callable[..., list[Array]], changed: Sequence[int], size: int, batched: Sequence[bool]
) -> Callable[..., list[Array]]:
    """Return a function `(due[size], *inputs) -> changed leaves[size, ...]`, which may be vmapped.

    `batched` contains a bool per input: whether the input has a leading axis of length `size`.
    """

    @custom_vmap
    def call(due: Array, *inputs: Array) -> list[Array]:
        kept = varying([_spread(inputs[place], batched[place], size) for place in changed])

        def change(number: Any) -> list[Array]:
            return branch(*[x[number] if b else x for x, b in zip(inputs, batched, strict=True)])

        def turn(number: Array, leaves: list[Array]) -> list[Array]:
            def write() -> list[Array]:
                pairs = zip(leaves, change(number), strict=True)
                return [old.at[number].set(new) for old, new in pairs]

            return jax.lax.cond(due[number], write, lambda: leaves)

        if size == 1:
            return jax.lax.cond(due[0], lambda: [x[None] for x in change(0)], lambda: kept)
        turns = functools.partial(jax.lax.fori_loop, 0, size, turn, kept)
        return jax.lax.cond(due.any(), turns, lambda: kept)

    @call.def_vmap
    def _(outer: int, varies: list[bool], due: Array, *inputs: Array) -> Any:
        differs, *varies = varies
        if differs or size > 1:  # merge both axes into one
            given = zip((due, *inputs), (differs, *varies), (True, *batched), strict=True)
            due, *flat = (
                _merged(x, by_outer, by_inner, outer, size) for x, by_outer, by_inner in given
            )
            merged = [v or b for v, b in zip(varies, batched, strict=True)]
            out = _for_each(branch, changed, outer * size, merged)(due, *flat)
            return [x.reshape(outer, size, *x.shape[1:]) for x in out], [True] * len(changed)
        # One decision applies to all elements, whose changes a single vmapped branch computes.
        xs = list(inputs)
        for place in changed:
            xs[place], varies[place] = _spread(xs[place], varies[place], outer), True
        axes = [0 if v else None for v in varies]
        xs = [
            x.swapaxes(0, 1) if v and b else x for x, v, b in zip(xs, varies, batched, strict=True)
        ]
        wide = jax.vmap(branch, axes, axis_size=outer)
        out = _for_each(wide, changed, size, batched)(due, *xs)
        return [x.swapaxes(0, 1) for x in out], [True] * len(changed)

    return call


def _merged(x: Array, by_outer: bool, by_inner: bool, outer: int, size: int) -> Array:
    """Merge the batch axes of an input into one axis, unless the input has neither."""
    if not (by_outer or by_inner):
        return x
    x = _spread(x, by_outer, outer)
    x = x if by_inner else x[:, None]
    return jnp.broadcast_to(x, (outer, size, *x.shape[2:])).reshape(-1, *x.shape[2:])


def _spread(x: Array, batched: bool, size: int) -> Array:
    """Broadcast an array to a leading axis of length `size`, unless it already has one."""
    return x if batched else jnp.broadcast_to(x, (size, *x.shape))
