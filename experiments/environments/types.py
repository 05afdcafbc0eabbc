"""Interfaces of environments: options, names with sizes, the spec, and compiled environments."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.types import Continuous, Discrete
from jaxreplay.option import Config, option
from jaxreplay.types import Goals, Tree

Array = jax.Array
State = Any  # an environment's own state, any pytree
Render = Callable[[Any], np.ndarray]  # state -> picture [H, W, 3] uint8

SIZES = range(2, 65)  # valid sizes for environments with a size at the end of their name


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig(Config):
    """Options of every environment; families add their own."""

    max_steps: int | None = option(
        None,
        "agent steps until an episode is truncated; none: the environment's own limit",
        at_least=1,
    )


@dataclasses.dataclass(frozen=True)
class CompiledConfig(EnvironmentConfig):
    """Options of environments that compile, which make a task harder for replay."""

    sticky: float = option(
        0.0,
        "probability that a step repeats the previous action, except in the first step",
        "Machado et al. 2018: 0.25 in Atari",
        at_least=0,
        at_most=1,
    )
    hide: tuple[int, ...] | None = option(
        None,
        "entries of vector observations to leave out, such as 1 3 for the velocities of CartPole",
        at_least=0,
    )
    project: int | None = option(
        None,
        "size of a fixed random projection that replaces vector observations",
        at_least=1,
    )
    delay: int = option(
        1, "steps whose rewards are paid as a sum, at the last one or at the end of the episode",
        at_least=1,
    )  # fmt: skip
    sparse: bool = option(
        False, "reward 1 for success and 0 elsewhere, in tasks whose episodes end with success"
    )


def size_of(family: str, text: str) -> int:
    """Parse the size at the end of an environment's name.

    Args:
      family: start of the name, such as walk/.
      text: the size, an integer without leading zeros.

    Raises:
      ValueError: the number is not in `SIZES`.
    """
    if text not in map(str, SIZES):
        raise ValueError(
            f"there is no environment '{family}{text}': its name ends with a whole number from "
            f"{SIZES[0]} to {SIZES[-1]}, as in {family}10"
        )
    return int(text)


class TimeStep(NamedTuple):
    """The results of one step, before any reset."""

    reward: Array  # [] float32
    terminated: Array  # [] bool, the task ended: no bootstrapping
    truncated: Array  # [] bool, a time limit ended the episode: bootstrap from final_obs
    final_obs: Tree  # [...] the true observation after the action, never one after a reset


class EnvironmentSpec(NamedTuple):
    """The properties of an environment that a run needs before the first step."""

    name: str  # full name, such as gymnax/CartPole-v1
    obs: Any  # [...] of one environment, a tree of jax.ShapeDtypeStruct
    action_space: Discrete | Continuous
    max_steps: int  # agent steps after which an episode is truncated
    frame_stack: int = 0  # as in `Environment`
    goals: Goals | None = None  # as in `Environment`


class Environment(NamedTuple):
    """One environment as pure functions over its own state, for vmap.

    `step(key, state, action)` returns the next state and observation, which already belong to the
    next episode if this one ends (terminated or truncated), and the results of the step. At most
    one of `terminated` and `truncated` is set; termination takes precedence. Actions are `[]`
    int32, or `[A]` float32 in [-1, 1], which is clipped and scaled to the environment's own bounds.

    No leaf of states and observations is weakly typed, so that a jitted step compiles once.
    """

    name: str
    reset: Callable[[Array], tuple[State, Tree]]  # key -> the state and the first observation
    step: Callable[[Array, State, Array], tuple[State, Tree, TimeStep]]
    action_space: Discrete | Continuous
    max_steps: int  # agent steps after which an episode is truncated
    frame_stack: int = 0  # frames stacked in an observation, newest last; 0 for no stack
    goals: Goals | None = None  # layout and reward of goals; None for tasks without goals
    renderer: Callable[[], Render] | None = None  # None if states cannot be rendered

    @property
    def spec(self) -> EnvironmentSpec:
        """The spec; the reset is traced, not executed."""
        obs = jax.eval_shape(self.reset, jax.random.key(0))[1]
        return EnvironmentSpec(
            self.name, obs, self.action_space, self.max_steps, self.frame_stack, self.goals
        )
