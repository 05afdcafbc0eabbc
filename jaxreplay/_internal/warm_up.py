"""States of samplers for the transitions of another replay, as one exact pass gives them."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import ring as ring_
from jaxreplay.objectives import Objective
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import IGNORED, Array, State, get_field, has_field

STATELESS = "none"  # basis of methods whose probabilities follow from the stored transitions
_NEEDS_OTHERS = {
    "goals": "goals of a task",
    "density": "densities of stored actions",
    "whole_episodes": "whole episodes",
    "learned_weights": "weights that learn with the agent",
    "episode_returns": "returns during training",
}


def has_priorities(sampler: Sampler) -> bool:
    """Return whether a sampler has priorities that `Sampler.refresh` sets."""
    return bool(sampler.requires.feedback) and type(sampler).refresh is not Sampler.refresh


def lacks(method: Method, ring: Ring, feedback: Mapping[str, Array]) -> str | None:
    """Return why the probabilities of a method are not known for a ring; None if they are.

    Args:
      method: the method.
      ring: the stored transitions.
      feedback: the agent's feedback on them, by name.
    """
    sampler, needs = method.sampler, method.requires
    if sampler.length is not None or (needs.single_steps and "trajectories" in sampler.provides):
        return "draws sequences"
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
    learns = type(sampler).update is not Sampler.update and not sampler.is_uniform
    if learns and type(sampler).refresh is Sampler.refresh:
        return "depends on the draws of its own run"
    return None


def basis(sampler: Sampler) -> str:
    """Return how a sampler without a reason in `lacks` gets its state."""
    if "first" in sampler.requires.transition_fields:
        return "exact pass in time order"
    if sampler.requires.feedback:
        return "one exact pass"
    return STATELESS


class Seen(NamedTuple):
    """A sampler for stored transitions: its probabilities, and weights of some draws."""

    probability: Array  # [C]
    drawn: Array  # [n, B] slots
    weights: Array  # [n, B]


_BATCHES = 16  # whose weights show their relation to probabilities


@functools.partial(jax.jit, static_argnums=(0, 4))
def exact(
    sampler: Sampler, ring: Ring, key: Array, feedback: Mapping[str, Array], batch_size: int
) -> Seen:
    """Return how a sampler with exact priorities sees the stored transitions."""
    return _seen(sampler, exact_state(sampler, ring, key, feedback), ring, key, batch_size)


@functools.partial(jax.jit, static_argnums=(0, 4))
def stored(sampler: Sampler, state: State, ring: Ring, key: Array, batch_size: int) -> Seen:
    """Return how a sampler with a state of its own sees the stored transitions."""
    return _seen(sampler, state, ring, key, batch_size)


def _seen(sampler: Sampler, state: State, ring: Ring, key: Array, batch_size: int) -> Seen:
    slots = jnp.arange(ring.capacity, dtype=jnp.int32)
    probability = sampler.probability(state, ring, slots, batch_size)
    if sampler.length is not None:
        none = jnp.zeros((0, batch_size), jnp.int32)
        return Seen(probability, none, none.astype(jnp.float32))

    def draw(key: Array) -> tuple[Array, Array]:
        drawn = sampler.sample(state, ring, key, batch_size)
        return drawn.indices, drawn.weights

    return Seen(probability, *jax.lax.map(draw, jax.random.split(key, _BATCHES)))


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
    if has_priorities(sampler):
        slots = jnp.arange(ring.capacity, dtype=jnp.int32)
        slots = jnp.where(slots < ring_.size(ring), slots, IGNORED)
        told = {name: feedback[name] for name in wanted.feedback}
        state = sampler.refresh(state, ring, slots, **told)
    return state


def weights(seen: Seen, probability: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Return importance weights `[N]` up to a factor: `P^-beta`, with beta of the drawn weights.

    Weights that are divided by the largest one of a batch differ by a factor between batches.

    Args:
      seen: the sampler's draws.
      probability: `[N]`.
      slots: `[N]`, those of the probabilities.
    """
    drawn, given = np.asarray(seen.drawn), np.asarray(seen.weights, np.float64)
    chance = np.zeros(len(np.asarray(seen.probability)))
    chance[slots] = probability
    known = (given > 0) & (chance[drawn] > 0)
    x = np.log(np.where(known, chance[drawn], 1.0))
    y = np.log(np.where(known, given, 1.0))
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    x, y = (np.where(known, v - v.sum(axis=1, keepdims=True) / count, 0.0) for v in (x, y))
    beta = -(x * y).sum() / max(np.square(x).sum(), 1e-12)
    positive = probability > 0
    scaled = np.where(positive, probability * len(probability), 1.0)
    return np.where(positive, scaled**-beta, 0.0)


def slope_factors(objective: Objective, td: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return the derivative of a method's loss relative to that of the agent's own loss, `[n]`.

    It is 1 for a method with the loss of the agent, and for one whose loss depends on the place in
    a batch.

    Args:
      objective: the method's objective.
      td: `[n]`, TD errors.
      slopes: `[n]`, derivatives of the agent's own loss.
    """
    error = objective.error
    if error is None or objective.roles:
        return np.ones_like(td)
    own = np.asarray(jax.grad(lambda td: error(td).sum())(jnp.asarray(td)))
    return np.where(slopes == 0, 1.0, own / np.where(slopes == 0, 1.0, slopes))


def field(ring: Ring, name: str) -> Array | None:
    """Return a stored scalar of all slots `[C]`, or None if there is no such field."""
    values = get_field(ring_.contents(ring), name)
    return values if isinstance(values, jax.Array) and values.ndim == 1 else None
