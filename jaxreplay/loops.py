"""Utilities for training loops with a replay.

* `unrolled(key)` returns a PRNG key that yields the same numbers, but faster in compiled loops.
* `product(x, kernel)` computes a matrix product that is faster on CPU for small dimensions.
* `cond_if_any(due, change, tree)` is a conditional for updates that few vmapped elements need.
* `if_finite(optimiser)` wraps an optimiser to skip updates with NaN or infinite gradients.
* `sum_of_squares(tree)` is the square of a global norm, in one kernel on a GPU.
* `varying(tree)` lets a loop under `jax.shard_map` carry arrays that do not yet vary over devices.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from jaxreplay._internal.branches import cond_if_any, cond_on_schedule
from jaxreplay._internal.platforms import by_platform
from jaxreplay._internal.tracing import donatable, varying, with_default_promotion
from jaxreplay.buffer import product, unrolled
from jaxreplay.types import Array, Tree

__all__ = [
    "IfFiniteState", "cond_if_any", "cond_on_schedule", "donatable", "if_finite", "product",
    "sum_of_squares", "unrolled", "varying",
]  # fmt: skip


class IfFiniteState(NamedTuple):
    """State of an optimiser that skips non-finite gradients."""

    finite: Array  # [] bool, whether the latest gradient was finite
    inner: optax.OptState  # state of the inner optimiser


def if_finite(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Wrap an optimiser so that it skips non-finite gradients.

    In contrast to `optax.apply_if_finite`, the number of skipped gradients is unlimited, and an
    elementwise selection, which XLA fuses with the update, replaces the branch.

    A gradient is considered finite if the sum of squares of every leaf is finite. On accelerators,
    the sum of squares over all leaves must be finite. This test is cheaper than a test of every
    element and deliberately stricter: for gradients with overflowing squares, Adam's second moment
    would become infinite and the affected parameters would never change again. Squares are computed
    in the leaf's dtype, as in Adam (float16 represents squares of numbers below 256), and summed in
    float32 or wider.

    Args:
      inner: optimiser for finite gradients.

    Returns:
      An optimiser whose state is an `IfFiniteState`, and whose updates are 0 for a non-finite
      gradient.
    """

    def init(params: optax.Params) -> IfFiniteState:
        return IfFiniteState(jnp.ones((), bool), inner.init(params))

    @with_default_promotion
    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        before = cast(IfFiniteState, state).inner
        finite = _are_finite(*jax.tree.leaves(updates))
        steps, after = inner.update(updates, before, params)
        steps = jax.tree.map(lambda x: jnp.where(finite, x, jnp.zeros_like(x)), steps)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)
        return steps, IfFiniteState(finite, kept)

    return optax.GradientTransformation(init, update)


@with_default_promotion
def sum_of_squares(tree: Tree) -> Array:
    """Return the sum of the squared magnitudes of all elements of a pytree of arrays, `[]`.

    For gradients, the square root of the sum is the global norm. On accelerators, one reduction
    sums over all leaves, since a GPU launches at least one kernel for every reduction.

    Example:
      >>> float(sum_of_squares({"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}))
      6.0
    """
    return _sum(*jax.tree.leaves(tree))


def _sum_of_each(*leaves: Array) -> Array:
    return sum((x.sum() for x in _squares(leaves)), start=jnp.zeros((), jnp.float32))


def _sum_of_all(*leaves: Array) -> Array:
    return jnp.concatenate([jnp.zeros(0, jnp.float32), *map(jnp.ravel, _squares(leaves))]).sum()


def _each_is_finite(*leaves: Array) -> Array:
    sums = [x.sum() for x in _squares(leaves)]
    return jnp.isfinite(jnp.stack(sums)).all() if sums else jnp.ones((), bool)


def _all_are_finite(*leaves: Array) -> Array:
    return jnp.isfinite(_sum_of_all(*leaves))


def _squares(leaves: Sequence[Array]) -> list[Array]:
    squares = [(x * x.conj()).real for x in leaves]
    return [x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in squares]


_sum = by_platform(_sum_of_all, cpu=_sum_of_each)
_are_finite = by_platform(_all_are_finite, cpu=_each_is_finite)
