"""What an environment is to a training loop: its spec, and one that compiles and auto-resets."""

from typing import Any, NamedTuple, Protocol

import jax

from agents.types import Continuous, Discrete
from jaxreplay.types import Tree

Array = jax.Array
State = Any  # an environment's own state, any pytree


class TimeStep(NamedTuple):
    """What one step returned, before any reset."""

    reward: Array  # [] float32
    terminated: Array  # [] bool, the task ended: nothing to bootstrap from
    truncated: Array  # [] bool, a time limit cut the episode: bootstrap from final_obs
    final_obs: Tree  # [...] the true observation after the action, never one after reset


class Reset(Protocol):
    """Begin an episode."""

    def __call__(self, key: Array, /) -> tuple[State, Tree]:
        """Return the state and the first observation; no leaf is weakly typed."""
        ...


class StepEnvironment(Protocol):
    """Take one step, and begin the next episode where this one ends."""

    def __call__(self, key: Array, state: State, action: Array, /) -> tuple[State, Tree, TimeStep]:
        """Return the state and observation to go on from, and what the step returned.

        Args:
          key: PRNG key.
          state: the environment's.
          action: `[]` int32, or `[A]` float32 in [-1, 1], which is scaled (and clipped) to the
            environment's own bounds.

        Returns:
          `state`, `obs` and a `TimeStep`. When the episode ends (terminated or truncated), state
          and observation already belong to the next one. At most one of `terminated` and
          `truncated` is set; termination wins. No leaf is weakly typed: a jitted step compiles
          once.
        """
        ...


class EnvironmentSpec(NamedTuple):
    """What a run has to know of an environment before it takes a step in it."""

    name: str  # full name, such as gymnax/CartPole-v1
    obs: Any  # [...] of one environment, a tree of jax.ShapeDtypeStruct
    action_space: Discrete | Continuous
    max_steps: int  # agent steps after which an episode is truncated
    frame_stack: int = 0  # as in `Environment`


class Environment(NamedTuple):
    """One environment as pure functions over its own state; the loop vmaps it over lanes."""

    name: str
    reset: Reset
    step: StepEnvironment
    action_space: Discrete | Continuous
    max_steps: int  # agent steps after which an episode is truncated
    frame_stack: int = 0  # frames stacked in an observation, newest last; 0: it is not a stack

    @property
    def spec(self) -> EnvironmentSpec:
        """What a run has to know of it; nothing is computed."""
        obs = jax.eval_shape(self.reset, jax.random.key(0))[1]
        return EnvironmentSpec(self.name, obs, self.action_space, self.max_steps, self.frame_stack)
