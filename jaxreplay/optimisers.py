"""Optimisers for gradients that may overflow: of learned samplers, and of agents."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from jaxreplay.types import Array


class IfFiniteState(NamedTuple):
    """State of an optimiser that passes over gradients which are not finite."""

    finite: Array  # [] bool, whether the latest gradient was
    inner: optax.OptState


def if_finite(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Leave parameters and state as they are where a gradient is not finite, however often.

    `optax.apply_if_finite` without its limit, and with a choice for each number, which XLA fuses
    with the step, instead of a branch, for which it keeps gradients and moments ready. Gradients
    count as finite if their squares' sums are, which is quicker to ask than every number:
    Adam's second moment of larger ones would be infinite, and its parameter never move again.
    """

    def init(params: optax.Params) -> IfFiniteState:
        return IfFiniteState(jnp.ones((), bool), inner.init(params))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        before = cast(IfFiniteState, state).inner
        squares = [optax.tree.norm(x, squared=True) for x in jax.tree.leaves(updates)]
        finite = jnp.isfinite(jnp.stack(squares)).all()
        steps, after = inner.update(updates, before, params)
        steps = jax.tree.map(lambda x: jnp.where(finite, x, jnp.zeros_like(x)), steps)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)
        return steps, IfFiniteState(finite, kept)

    return optax.GradientTransformation(init, update)
