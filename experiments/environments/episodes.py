"""An Environment from bare dynamics: time limit, automatic reset, true last observation.

The packages' own wrappers merge the time limit with termination, lose the last observation, or
start every episode from the same state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Continuous, Discrete
from experiments.environments.types import Array, CompiledConfig, Environment, Render, TimeStep
from jaxreplay.loops import cond_if_any
from jaxreplay.traced import is_zero


class EpisodeState(NamedTuple):
    """State of the dynamics, step counter of the episode, and what some options remember."""

    inner: Any
    steps: Array  # [] int32, agent steps in this episode
    previous: Array | None = None  # action of the last step, with sticky actions
    unpaid: Array | None = None  # [] float32, sum of withheld rewards, with delayed rewards


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
    config: CompiledConfig = CompiledConfig(),
    costly_reset: bool = False,
    ends_with_success: bool = False,
    renderer: Callable[[], Render] | None = None,
) -> Environment:
    """Add a time limit, automatic resets and the options of an environment to bare dynamics.

    Leaves of state and observation are cast to their strong dtypes after a reset, so that a jitted
    step compiles once.

    Args:
      name: full name of the environment.
      reset: dynamics' reset.
      step: dynamics' step.
      action_space: space of the actions.
      max_steps: agent steps until an episode is truncated, at least 1.
      config: options; its `max_steps` is ignored.
      costly_reset: whether a reset is about as slow as a step. It is then computed only where an
        episode has ended; cheaper resets are computed in every step, since a branch is slower.
      ends_with_success: whether episodes terminate only by solving the task.
      renderer: makes the function that renders a state of the dynamics.

    Raises:
      ValueError: an option does not fit the environment.
    """
    hidden, projection = _changes(name, reset, config, ends_with_success)

    def see(obs: chex.ArrayTree) -> chex.ArrayTree:
        seen = jnp.delete(jnp.asarray(obs), hidden) if hidden.size else obs
        return seen if projection is None else jnp.asarray(seen, jnp.float32) @ projection

    shapes = jax.eval_shape(reset, jax.random.key(0))
    sticks = not is_zero(config.sticky)
    delays = config.delay > 1

    def cast(tree: Any) -> Any:
        def strong(x: Any, like: jax.ShapeDtypeStruct) -> Array:
            if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
                return x
            return jax.lax.convert_element_type(jnp.asarray(x), like.dtype)

        return jax.tree.map(strong, tree, shapes)

    def start(key: Array) -> tuple[EpisodeState, chex.ArrayTree]:
        state, obs = cast(reset(key))
        previous = example_action(action_space) if sticks else None
        unpaid = jnp.zeros((), jnp.float32) if delays else None
        return EpisodeState(state, jnp.zeros((), jnp.int32), previous, unpaid), see(obs)

    def advance(
        key: Array, state: EpisodeState, action: Array
    ) -> tuple[EpisodeState, chex.ArrayTree, TimeStep]:
        key_step, key_reset = jax.random.split(key)
        if sticks:
            drawn = jax.random.uniform(jax.random.fold_in(key_step, 1))
            repeats = (state.steps > 0) & (drawn < config.sticky)
            action = jnp.where(repeats, state.previous, action)
        inner, obs, reward, terminated = step(key_step, state.inner, action)
        inner, obs = cast((inner, obs))
        obs = see(obs)
        after = EpisodeState(inner, state.steps + 1, action if sticks else None)
        terminated = jnp.asarray(terminated, bool)
        truncated = (after.steps >= max_steps) & ~terminated
        over = terminated | truncated
        reward = jnp.asarray(terminated if config.sparse else reward, jnp.float32)
        if delays:
            pays, due = over | (after.steps % config.delay == 0), state.unpaid + reward
            reward = jnp.where(pays, due, 0.0)
            after = after._replace(unpaid=jnp.where(pays, 0.0, due))
        if costly_reset:
            next_state, next_obs = cond_if_any(
                over, lambda _, key: start(key), (after, obs), key_reset
            )
        else:
            next_state, next_obs = jax.tree.map(
                lambda fresh, old: jnp.where(over, fresh, old), start(key_reset), (after, obs)
            )
        return next_state, next_obs, TimeStep(reward, terminated, truncated, obs)

    def render_inner() -> Render:
        render = renderer()
        return lambda state: render(state.inner)

    outer = None if renderer is None else render_inner
    return Environment(name, start, advance, action_space, max_steps, renderer=outer)


def _changes(
    name: str, reset: Reset, config: CompiledConfig, ends_with_success: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the indices of hidden entries, and the projection of observations or None.

    Rows of the projection `[entries, config.project]` have length 1, and are the same in every run.
    Raises ValueError if the options do not fit the environment.
    """
    if config.sparse and not ends_with_success:
        raise ValueError(
            f"--env.sparse needs episodes that end only with success, and those of {name} do not: "
            "leave out --env.sparse, or use a task such as gymnax/MountainCar-v0"
        )
    hidden = np.unique(np.asarray(config.hide or (), int))
    if not hidden.size and config.project is None:
        return hidden, None
    obs = jax.eval_shape(reset, jax.random.key(0))[1]
    size = obs.shape[0] if getattr(obs, "ndim", 0) == 1 else 0
    if not size:
        raise ValueError(
            f"--env.{'hide' if hidden.size else 'project'} needs observations that are vectors, "
            f"and those of {name} are not: leave it out"
        )
    if hidden.size and (hidden[-1] >= size or len(hidden) == size):
        raise ValueError(
            f"--env.hide is {' '.join(map(str, hidden))}: {name} observes entries 0 to "
            f"{size - 1}, and at least one must remain"
        )
    if config.project is None:
        return hidden, None
    rows = np.random.default_rng(0).normal(size=(size - len(hidden), config.project))
    return hidden, np.float32(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def example_action(space: Discrete | Continuous) -> Array:
    """Return an action of one environment, zeros, as an example of shape and dtype."""
    if isinstance(space, Discrete):
        return jnp.zeros((), jnp.int32)
    return jnp.zeros(space.size, jnp.float32)
