"""Agents, defined as pure functions over an explicit state, and their action spaces."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

from jaxreplay import objectives
from jaxreplay.objectives import Loss
from jaxreplay.types import DENSITY, Provision, Requirements, Sample, Transition, Tree

Array = jax.Array
State = Any  # agent state, any pytree


class Discrete(NamedTuple):
    """A discrete action space with int32 actions 0 .. n-1."""

    n: int


class Continuous(NamedTuple):
    """A continuous action space with float32 vectors `[size]` in [-1, 1].

    Each environment clips actions and rescales them to its own bounds.
    """

    size: int


class Info(NamedTuple):
    """Feedback such as TD errors for the replay, and metrics for logging, from one update."""

    feedback: dict[str, Array]  # [B] float32 each, computed before the update
    metrics: dict[str, Array]  # [] float32 each


class Offers(NamedTuple):
    """Agent properties that are checked against a replay method's `Requirements`."""

    feedback: frozenset[str]  # names of the feedback arrays, such as "td_error"
    density: bool = False  # whether the policy has an action density, as `Trust` requires
    scalar_loss: bool = False  # whether a replay method may replace the loss on TD errors
    chooses: bool = False  # whether the agent scores candidates for `Objective.choose`
    learned_weights: bool = False  # whether the agent's state may include learned weights
    on_policy: bool = False  # whether the agent trains on each step only once
    reads: frozenset[Provision] = frozenset()  # contents of `Sample.aux` that the agent requires

    def lack(self, requires: Requirements) -> list[str]:
        """Return descriptions of the requirements that the agent does not meet."""
        lacking = sorted((requires.feedback | requires.feedback_of_new) - self.feedback)
        if requires.density and not self.density:
            lacking = [name for name in lacking if name != "log_ratio"] + [DENSITY]
        if requires.scalar_loss and not self.scalar_loss:
            lacking.append("a loss on scalar TD errors to replace")
        if requires.chooses and not self.chooses:
            lacking.append("an evaluation of candidates to choose from")
        if requires.learned_weights and not self.learned_weights:
            lacking.append("a state for learned weights")
        if requires.all_new and not self.on_policy:
            lacking.append("on-policy learning")
        return lacking


class Act(Protocol):
    """Select actions with exploration."""

    def __call__(
        self, state: State, obs: Tree, key: Array, previous: Tree = None, /
    ) -> tuple[Array, Tree]:
        """Return actions and the extras to store with the step.

        Args:
          state: agent state.
          obs: observations `[E, ...]`.
          key: PRNG key.
          previous: extras of the previous step, or zeros at the first step of an episode. Agents
            with temporally correlated noise use them. None is equivalent to zeros.

        Returns:
          A tuple of `action`, int32 `[E]` or float32 `[E, A]`, and `extras`, None or a pytree of
          arrays `[E, ...]`, such as the mean and variance of the behaviour policy.
        """
        ...


class Recall(Protocol):
    """Select greedy actions with the agent's memory."""

    def __call__(self, state: State, obs: Tree, previous: Tree = None, /) -> tuple[Array, Tree]:
        """Return actions `[E, ...]` without exploration, and the extras of the step.

        Args:
          state: agent state.
          obs: observations `[E, ...]`.
          previous: extras of the previous step, or zeros at the first step of an episode.
        """
        ...


class UpdateAgent(Protocol):
    """Update the agent on one batch."""

    def __call__(self, state: State, sample: Sample, key: Array, /) -> tuple[State, Info]:
        """Update the agent state, and return it with an Info of feedback and metrics.

        Args:
          state: agent state.
          sample: a batch of transitions `[B, ...]` with importance weights `[B]`.
          key: PRNG key.
        """
        ...


class Agent(NamedTuple):
    """An agent as pure functions over an explicit state.

    * `init(key, obs, action)` returns the initial state. `obs` and `action` are unbatched examples;
      `action` is int32 `[]` or float32 `[A]`.
    * `act(state, obs, key, previous)`: see `Act`.
    * `greedy(state, obs)` returns actions `[E, ...]` without exploration.
    * `update(state, sample, key)`: see `UpdateAgent`.
    * `feedback(state, transition, key)` returns the feedback that `update` would compute for
      transitions `[B, ...]`, as a dict of float32 arrays `[B]`.
    * `recall(state, obs, previous)`: see `Recall`; None for agents without memory.
    * `gradient(state, transition, weights, key)` returns the gradient of the critics' loss with
      respect to their parameters. The loss is the mean over transitions `[B, ...]` of the losses
      times `weights` `[B]`. None for agents without such a gradient.
    * `loss` is the agent's own loss on TD errors, which an objective may replace.
    """

    init: Callable[[Array, Tree, Array], State]
    act: Act
    greedy: Callable[[State, Tree], Array]
    update: UpdateAgent
    feedback: Callable[[State, Transition, Array], dict[str, Array]]
    extras_of_action: bool = True  # whether the extras describe the action, such as its density;
    # such extras can't be stored with the random actions of a warm-up
    recall: Recall | None = None
    gradient: Callable[[State, Transition, Array, Array], Tree] | None = None
    loss: Loss = objectives.mse
