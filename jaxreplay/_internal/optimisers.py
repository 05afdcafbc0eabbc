"""Optimisers for gradients that may overflow."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.types import Array


class IfFiniteState(NamedTuple):
    """State of an optimiser that skips gradients which are not finite."""

    finite: Array  # [] bool, whether the latest gradient was
    inner: optax.OptState


def if_finite(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optimiser that skips gradients which are not finite.

    It is `optax.apply_if_finite` without a limit, and with a selection per number instead of a
    branch: XLA fuses it with the update.

    Gradients count as finite if the sum of squares of every leaf is finite. That is cheaper to
    compute than a test of every number, and stricter on purpose: Adam's second moment of larger
    gradients would be infinite, and their parameter never move again. Squares have the leaf's
    dtype, like that moment (float16 holds squares of numbers below 256), and are summed in float32
    or wider.

    Args:
      inner: optimiser of finite gradients.

    Returns:
      An optimiser with an `IfFiniteState`; its updates are 0 for a gradient that is not finite.
    """

    def init(params: optax.Params) -> IfFiniteState:
        return IfFiniteState(jnp.ones((), bool), inner.init(params))

    @with_default_promotion
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
    """Return whether the sum of squares of every leaf is finite, `[]` bool; True without leaves."""
    squares = [(x * x.conj()).real for x in jax.tree.leaves(updates)]
    if not squares:
        return jnp.ones((), bool)
    sums = [x.sum(dtype=jnp.promote_types(x.dtype, jnp.float32)) for x in squares]
    return jnp.isfinite(jnp.stack(sums)).all()
