"""The interface between an environment that compiles and the training loop."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax

from agents.types import Continuous, Discrete

Array = jax.Array


class TimeStep(NamedTuple):
    """What one step returned, before any reset."""

    reward: Array  # [] float32
    terminated: Array  # [] bool, the task ended: nothing to bootstrap from
    truncated: Array  # [] bool, a time limit cut the episode: bootstrap from final_obs
    final_obs: chex.ArrayTree  # [...] the true observation after the action, never one after reset


class Environment(NamedTuple):
    """One environment as pure functions; the loop vmaps it over lanes.

    * `reset(key) -> (state, obs)`
    * `step(key, state, action) -> (state, obs, TimeStep)`: when the episode ends (terminated or
      truncated), `state` and `obs` already belong to the next episode. At most one of `terminated`
      and `truncated` is set; termination wins.

    No leaf of `state` or `obs` is weakly typed: a jitted step compiles once.
    Actions of a `Continuous` space arrive in [-1, 1] and are scaled (and clipped) to the
    environment's own bounds.
    """

    name: str
    reset: Callable[[Array], tuple[Any, chex.ArrayTree]]
    step: Callable[[Array, Any, Array], tuple[Any, chex.ArrayTree, TimeStep]]
    action_space: Discrete | Continuous
    max_steps: int  # agent steps after which an episode is truncated
    frame_stack: int = 0  # frames stacked in an observation, newest last; 0: it is not a stack
