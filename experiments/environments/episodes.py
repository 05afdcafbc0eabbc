"""An Environment from bare dynamics: time limit, automatic reset, true last observation.

The packages' own wrappers merge the time limit with termination, lose the last observation, or
start every episode from the same state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from agents.types import Continuous, Discrete
from experiments.environments.types import Array, Environment, TimeStep
from jaxreplay.loops import cond_if_any


class EpisodeState(NamedTuple):
    """The dynamics' own state and the step counter of the episode."""

    inner: Any
    steps: Array  # [] int32, agent steps in this episode


# Dynamics of a family: reset(key) -> (state, obs), and
# step(key, state, action) -> (state, obs, reward, terminated), without a time limit.
Reset = Callable[[Array], tuple[Any, chex.ArrayTree]]
Step = Callable[[Array, Any, Array], tuple[Any, chex.ArrayTree, Array, Array]]


def make_episodic(
    name: str,
    reset: Reset,
    step: Step,
    action_space: Discrete | Continuous,
    max_steps: int,
    costly_reset: bool = False,
) -> Environment:
    """Add a time limit (agent steps, at least 1) and automatic resets to bare dynamics.

    A costly reset, with about the cost of a step, is computed only where an episode has ended;
    others in every step, since a branch costs more.

    Leaves of state and observation are cast to their strong dtypes after a reset, so that a jitted
    step compiles once.
    """
    shapes = jax.eval_shape(reset, jax.random.key(0))

    def cast(tree: Any) -> Any:
        return jax.tree.map(
            lambda x, like: jax.lax.convert_element_type(jnp.asarray(x), like.dtype), tree, shapes
        )

    def start(key: Array) -> tuple[EpisodeState, chex.ArrayTree]:
        state, obs = cast(reset(key))
        return EpisodeState(state, jnp.zeros((), jnp.int32)), obs

    def advance(
        key: Array, state: EpisodeState, action: Array
    ) -> tuple[EpisodeState, chex.ArrayTree, TimeStep]:
        key_step, key_reset = jax.random.split(key)
        inner, obs, reward, terminated = step(key_step, state.inner, action)
        inner, obs = cast((inner, obs))
        after = EpisodeState(inner, state.steps + 1)
        terminated = jnp.asarray(terminated, bool)
        truncated = (after.steps >= max_steps) & ~terminated
        over = terminated | truncated
        if costly_reset:
            next_state, next_obs = cond_if_any(
                over, lambda _, key: start(key), (after, obs), key_reset
            )
        else:
            next_state, next_obs = jax.tree.map(
                lambda fresh, old: jnp.where(over, fresh, old), start(key_reset), (after, obs)
            )
        reward = jnp.asarray(reward, jnp.float32)
        return next_state, next_obs, TimeStep(reward, terminated, truncated, obs)

    return Environment(name, start, advance, action_space, max_steps)
