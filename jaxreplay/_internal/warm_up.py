"""States of samplers, computed in one exact pass over the transitions of another replay."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import ring as ring_
from jaxreplay.methods.proportional import ImportanceWeights
from jaxreplay.objectives import plain
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
    """Return the reason why stored transitions do not determine a method's probabilities, or None.

    Args:
      method: the method.
      ring: the stored transitions.
      feedback: the agent's feedback on these transitions, by name.
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
    """Return a phrase for how `exact_state` computes the state of a sampler."""
    if "first" in sampler.requires.transition_fields:
        return "exact pass in time order"
    if sampler.requires.feedback:
        return "one exact pass"
    return STATELESS


# The compiled programs run once, so compile time matters more than run time.
_COMPILER = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _quickly(function: _Function) -> _Function:
    """Compile a function quickly; its arguments `sampler` and `batch_size` are static."""
    static = ("sampler", "batch_size")
    compiled: Any = jax.jit(function, static_argnames=static, compiler_options=_COMPILER)
    return compiled


@_quickly
def probability(sampler: Sampler, state: State, ring: Ring, batch_size: int) -> Array:
    """Return the probabilities of all slots, `[C]`, under a sampler and its state."""
    slots = jnp.arange(ring.capacity, dtype=jnp.int32)
    return sampler.probability(state, ring, slots, batch_size)


@_quickly
def exact(
    sampler: Sampler,
    ring: Ring,
    key: Array,
    feedback: Mapping[str, Array],
    updates: Array,
    batch_size: int,
) -> tuple[Array, State]:
    """Return the probabilities `[C]` of all slots, and the `exact_state`.

    Schedules of the state are advanced to the number of gradient steps `updates` `[]`.
    """
    state = _at_update(exact_state(sampler, ring, key, feedback), updates)
    slots = jnp.arange(ring.capacity, dtype=jnp.int32)
    return sampler.probability(state, ring, slots, batch_size), state


@_quickly
def refreshed(
    sampler: Sampler, state: State, ring: Ring, feedback: Mapping[str, Array], batch_size: int
) -> tuple[Array, State]:
    """Set exact priorities in a state; return the probabilities `[C]` and the new state."""
    state = _refresh(sampler, state, ring, feedback)
    slots = jnp.arange(ring.capacity, dtype=jnp.int32)
    return sampler.probability(state, ring, slots, batch_size), state


def _at_update(state: State, updates: Array) -> State:
    """Return a state whose schedules are advanced to a number of updates."""

    def counted(path: Any, leaf: Array) -> Array:
        name = getattr(path[-1], "name", None) if path else None
        return jnp.asarray(updates, leaf.dtype) if name == "updates" and not leaf.ndim else leaf

    return jax.tree_util.tree_map_with_path(counted, state)


def _refresh(sampler: Sampler, state: State, ring: Ring, feedback: Mapping[str, Array]) -> State:
    slots = jnp.arange(ring.capacity, dtype=jnp.int32)
    slots = jnp.where(slots < ring_.size(ring), slots, IGNORED)
    told = {name: feedback[name] for name in sampler.requires.feedback}
    return sampler.refresh(state, ring, slots, **told)


def exact_state(sampler: Sampler, ring: Ring, key: Array, feedback: Mapping[str, Array]) -> State:
    """Return the state after all stored transitions were added in order, with exact priorities.

    Args:
      sampler: the sampler of a method for which `lacks` returns None.
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
    return _refresh(sampler, state, ring, feedback) if has_priorities(sampler) else state


def weights(
    method: Method, state: State, ring: Ring, key: Array, batch_size: int, chance: np.ndarray
) -> np.ndarray | None:
    """Return importance weights of all slots, `[C]`, up to a factor; None if they are not known.

    Weights are proportional to `P^-beta`. If they are divided by the largest weight of a batch, the
    factor differs between batches.

    Args:
      method: the method.
      state: state of its sampler.
      ring: the stored transitions.
      key: PRNG key for the batches that determine beta if the sampler declares no `weight`.
      batch_size: size of a batch.
      chance: `[C]`, probabilities.
    """
    if method.objective.learned_weights is not None or method.sampler.length is not None:
        return None
    if method.objective.critic is plain().critic:
        return np.ones(len(chance))  # they have no effect
    declared = _declared(method.sampler)
    if isinstance(declared, ImportanceWeights):
        beta = float(declared.exponent(jnp.asarray(_updates_of(state))))
    elif declared is None:
        beta = 0.0
    else:
        beta = _drawn_beta(method.sampler, state, ring, key, batch_size, chance)
    positive = chance > 0
    scaled = np.where(positive, chance * positive.sum(), 1.0)
    return None if np.isnan(beta) else np.where(positive, scaled**-beta, 0.0)


def _declared(sampler: Any) -> Any:
    """Return the `weight` that a sampler declares: None for weights of 1, () if not declared."""
    if isinstance(inner := getattr(sampler, "inner", None), Sampler):
        return _declared(inner)
    own = getattr(sampler, "weight", ())
    return getattr(getattr(sampler, "config", None), "weight", ()) if own == () else own


def _updates_of(state: State) -> int:
    for path, leaf in jax.tree.leaves_with_path(state):
        if getattr(path[-1], "name", None) == "updates":
            return int(leaf)
    return 0


_BATCHES = 16  # number of batches whose weights determine beta


@_quickly
def _draws(
    sampler: Sampler, state: State, ring: Ring, key: Array, batch_size: int
) -> tuple[Array, Array]:
    def draw(key: Array) -> tuple[Array, Array]:
        drawn = sampler.sample(state, ring, key, batch_size)
        return drawn.indices, drawn.weights

    return jax.lax.map(draw, jax.random.split(key, _BATCHES))


def _drawn_beta(
    sampler: Sampler, state: State, ring: Ring, key: Array, batch_size: int, chance: np.ndarray
) -> float:
    """Return the beta for which drawn weights are proportional to `P^-beta`; NaN if none fits."""
    slots, given = map(np.asarray, _draws(sampler, state, ring, key, batch_size))
    if not (given > 0).all() or not (chance[slots] > 0).all():
        return float("nan")
    x, y = (v - v.mean(axis=1, keepdims=True) for v in (np.log(chance[slots]), np.log(given)))
    beta = -(x * y).sum() / max(float(np.square(x).sum()), 1e-12)
    return float(beta) if np.abs(y + beta * x).max() < 1e-2 else float("nan")


def field(ring: Ring, name: str) -> Array | None:
    """Return the scalar field `name` of every slot, `[C]`, or None if there is no such field."""
    values = get_field(ring_.contents(ring), name)
    return values if isinstance(values, jax.Array) and values.ndim == 1 else None
