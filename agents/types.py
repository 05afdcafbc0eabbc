"""The interface of agents, pure functions over an explicit state, and the spaces of actions."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

from jaxreplay.types import Provision, Sample, Transition, Tree

Array = jax.Array
State = Any  # an agent's own state, any pytree


class Discrete(NamedTuple):
    """Actions 0 .. n-1, int32."""

    n: int


class Continuous(NamedTuple):
    """Action vectors `[size]` float32 with components in [-1, 1].

    Environments clip actions and rescale them to their own bounds.
    """

    size: int


class Info(NamedTuple):
    """Results of an update besides the state: feedback for the replay, and metrics for logs."""

    feedback: dict[str, Array]  # each [B] float32, of the networks before the update: td_error ...
    metrics: dict[str, Array]  # each [] float32


class Offers(NamedTuple):
    """Properties of an agent that are matched with a replay method's `Requirements`."""

    feedback: frozenset[str]  # names of the feedback per transition
    density: bool = False  # the policy has a density: objectives that require it receive `Trust`
    scalar_loss: bool = False  # the loss is a function of a TD error; a method may replace it
    on_policy: bool = False  # learns from new steps only, and once from each
    reads: frozenset[Provision] = frozenset()  # contents of `Sample.aux` that the agent requires


class Act(Protocol):
    """Choose actions with exploration."""

    def __call__(
        self, state: State, obs: Tree, key: Array, previous: Tree = None, /
    ) -> tuple[Array, Tree]:
        """Return actions, and extras to store with the step.

        Args:
          state: state of the agent.
          obs: observations `[E, ...]`.
          key: PRNG key.
          previous: extras of the previous step, zeros at the first step of an episode, for noise
            that is correlated in time. None means zeros.

        Returns:
          `action`, int32 `[E]` or float32 `[E, A]`, and `extras`, a pytree of `[E, ...]` (such as
          the mean and variance of the behaviour policy) or None.
        """
        ...


class UpdateAgent(Protocol):
    """Update the agent from one batch."""

    def __call__(self, state: State, sample: Sample, key: Array, /) -> tuple[State, Info]:
        """Return the state after the update, and its feedback and metrics.

        Args:
          state: state of the agent.
          sample: a batch of transitions `[B, ...]` with importance weights `[B]`.
          key: PRNG key.
        """
        ...


class Agent(NamedTuple):
    """An agent as pure functions over an explicit state.

    * `init(key, obs, action)` returns the state of an untrained agent, for one unbatched
      observation and action, int32 `[]` or float32 `[A]`.
    * `act(state, obs, key, previous)`: see `Act`.
    * `greedy(state, obs)` returns actions `[E, ...]` without exploration.
    * `update(state, sample, key)`: see `UpdateAgent`.
    * `feedback(state, transition, key)` returns the feedback that `update` would compute for
      transitions `[B, ...]`, by name, `[B]` float32 each.
    """

    init: Callable[[Array, Tree, Array], State]
    act: Act
    greedy: Callable[[State, Tree], Array]
    update: UpdateAgent
    feedback: Callable[[State, Transition, Array], dict[str, Array]]
    extras_of_action: bool = True  # extras describe the action, such as its density: they can't be
    # stored with another one, such as a random action of the warm-up
