"""States of samplers for the transitions of another replay, as one exact pass gives them."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxreplay import ring as ring_
from jaxreplay.objectives import Objective
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import IGNORED, Array, State, get_field, has_field

_NEEDS_OTHERS = {
    "goals": "goals of a task",
    "density": "densities of stored actions",
    "whole_episodes": "whole episodes",
    "learned_weights": "weights that learn with the agent",
    "episode_returns": "returns during training",
    "new_steps": "the episodes of its own run",
}


def has_refresh(sampler: Sampler) -> bool:
    """Return whether a sampler sets exact priorities (`Sampler.refresh`)."""
    return type(sampler).refresh is not Sampler.refresh


def lacks(method: Method, ring: Ring, feedback: Mapping[str, Array], own: bool) -> str | None:
    """Return why the probabilities of a method are not known for a ring; None if they are.

    Args:
      method: the method.
      ring: the stored transitions.
      feedback: the agent's feedback on them, by name.
      own: whether the state is that of a run with the method.
    """
    sampler, needs = method.sampler, method.requires
    if sampler.length is not None or needs.single_steps and "trajectories" in sampler.provides:
        return "draws sequences"
    if own:
        return None
    if sampler.capacity_factor != 1:
        return "stores transitions of its own choice"
    for name, what in _NEEDS_OTHERS.items():
        if getattr(needs, name):
            return f"needs {what}"
    if missing := sorted((sampler.requires.feedback | needs.feedback_of_new) - set(feedback)):
        return f"needs feedback {', '.join(missing)}"
    blank = jax.eval_shape(lambda: ring_.gather(ring, jnp.zeros(1, jnp.int32)))
    if fields := sorted(x for x in needs.transition_fields if not has_field(blank, x)):
        return f"needs fields {', '.join(fields)}"
    if sampler.requires.feedback and not has_refresh(sampler):
        return "depends on the order of its draws"
    return None


def basis(sampler: Sampler) -> str:
    """Return how a sampler without a reason in `lacks` gets its state."""
    if "first" in sampler.requires.transition_fields:
        return "exact pass in time order"
    if sampler.requires.feedback:
        return "one exact pass"
    return "none"


@functools.partial(jax.jit, static_argnums=0)
def exact_state(sampler: Sampler, ring: Ring, key: Array, feedback: Mapping[str, Array]) -> State:
    """Return the state after all stored transitions were added in order, with exact priorities.

    Args:
      sampler: a sampler that `lacks` nothing.
      ring: the stored transitions.
      key: PRNG key of the initial state.
      feedback: `[C]` each, the agent's feedback on all slots.
    """
    steps, envs = ring_.num_steps(ring), ring.num_envs
    empty = jax.tree.map(jnp.zeros_like, ring)
    state, wanted = sampler.init(key, empty), sampler.requires
    stored = jnp.minimum(ring.steps_added, steps)
    if type(sampler).add is not Sampler.add:

        def turn(number: Array, state: State) -> State:
            before = ring.steps_added - stored + number
            slots = before % steps * envs + jnp.arange(envs, dtype=jnp.int32)
            new = {name: feedback[name][slots] for name in wanted.feedback_of_new}
            row = ring_.gather(ring, slots)
            return sampler.add(state, ring.replace(steps_added=before + 1), slots, row, **new)

        state = jax.lax.fori_loop(0, stored, turn, state)
    if has_refresh(sampler):
        slots = jnp.arange(ring.capacity, dtype=jnp.int32)
        slots = jnp.where(slots < ring_.size(ring), slots, IGNORED)
        told = {name: feedback[name] for name in wanted.feedback}
        state = sampler.refresh(state, ring, slots, **told)
    return state


def slope_factors(objective: Objective, td: Array, slope: Array) -> Array:
    """Return the gradient of a method's loss by the output relative to the agent's own, `[n]`.

    It is 1 for a method with the loss of the agent.

    Args:
      objective: the method's objective.
      td: `[n]`, TD errors.
      slope: `[n]`, derivative of the agent's own loss.
    """
    error = objective.error
    if error is None or objective.roles:
        return jnp.ones_like(td)
    own = jax.grad(lambda td: error(td).sum())(td)
    return jnp.where(slope == 0, 1.0, own / jnp.where(slope == 0, 1.0, slope))


def field(ring: Ring, name: str) -> Array | None:
    """Return a stored scalar of all slots `[C]`, or None if there is no such field."""
    values = get_field(ring_.contents(ring), name)
    return values if isinstance(values, jax.Array) and values.ndim == 1 else None
