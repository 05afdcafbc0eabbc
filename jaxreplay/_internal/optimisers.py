"""Optimisers for gradients that may overflow: of learned samplers, and of agents."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from jaxreplay._internal.tracing import as_by_default
from jaxreplay.types import Array


class IfFiniteState(NamedTuple):
    """State of an optimiser that passes over gradients which are not finite."""

    finite: Array  # [] bool, whether the latest gradient was
    inner: optax.OptState


def if_finite(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Leave parameters and state as they are where a gradient is not finite, however often.

    `optax.apply_if_finite` without its limit, and with a choice for each number, which XLA fuses
    with the step, instead of a branch, for which it keeps gradients and moments ready.

    Gradients count as finite if the sum of each leaf's squares is, which is quicker to ask than
    every number: Adam's second moment of larger ones would be infinite, and its parameter never
    move again. As that moment is, squares are of the leaf's own dtype (float16: of numbers below
    256), but their sum is of float32 or wider. Without leaves they are finite.

    Args:
      inner: the optimiser of gradients that are finite.

    Returns:
      An optimiser of the same gradients whose state is an `IfFiniteState`: `finite` says whether
      the latest gradient was, and its steps are 0 where it was not.
    """

    def init(params: optax.Params) -> IfFiniteState:
        return IfFiniteState(jnp.ones((), bool), inner.init(params))

    @as_by_default
    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        before = cast(IfFiniteState, state).inner
        finite = _squares_are_finite(updates)
        steps, after = inner.update(updates, before, params)
        steps = jax.tree.map(lambda x: jnp.where(finite, x, jnp.zeros_like(x)), steps)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)
        return steps, IfFiniteState(finite, kept)

    return optax.GradientTransformation(init, update)


def _squares_are_finite(updates: optax.Updates) -> Array:
    """Tell whether the sum of squares of every leaf is finite, `[]` bool."""
    squares = [(x * x.conj()).real for x in jax.tree.leaves(updates)]
    if not squares:
        return jnp.ones((), bool)
    sums = [x.sum(dtype=jnp.promote_types(x.dtype, jnp.float32)) for x in squares]
    return jnp.isfinite(jnp.stack(sums)).all()
