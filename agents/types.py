"""What an agent is: five pure functions, and the action spaces they act in."""

from typing import Any, NamedTuple, Protocol

import jax

from jaxreplay.types import Provision, Sample, Transition, Tree

Array = jax.Array
State = Any  # an agent's own state, any pytree


class Discrete(NamedTuple):
    """Actions 0 .. n-1, int32."""

    n: int


class Continuous(NamedTuple):
    """Action vectors of `size` float32 numbers, bounded by [-1, 1] in every dimension.

    Environments scale to their own bounds (and clip), so that agents need to know none.
    """

    size: int


class Info(NamedTuple):
    """What one update tells: per-sample feedback for the replay, scalars for the log."""

    feedback: dict[str, Array]  # each [B] float32: td_error, q_value ... of the pre-update networks
    metrics: dict[str, Array]  # each [] float32


class Offers(NamedTuple):
    """What an agent gives a replay method, and what it reads of one."""

    feedback: frozenset[str]  # about transitions, by name
    density: bool = False  # it hands `Trust` to the objective, if that asks
    scalar_loss: bool = False  # its loss is one of a scalar TD error, which a method may replace
    on_policy: bool = False  # it learns from new steps only, each once
    reads: frozenset[Provision] = frozenset()  # what it must find in `Sample.aux`


class InitAgent(Protocol):
    """Make the state of an agent that has learned nothing."""

    def __call__(self, key: Array, obs: Tree, action: Array, /) -> State:
        """Return the state.

        Args:
          key: PRNG key.
          obs: one unbatched observation (shapes and dtypes).
          action: one unbatched action, int32 `[]` or float32 `[A]`.
        """
        ...


class Act(Protocol):
    """Choose actions with exploration."""

    def __call__(
        self, state: State, obs: Tree, key: Array, previous: Tree = None, /
    ) -> tuple[Array, Tree]:
        """Return the actions, and what is to be stored with the step.

        Args:
          state: the agent's.
          obs: `[E, ...]`.
          key: PRNG key.
          previous: what was to be stored with the step before in the same episode, zeros at an
            episode's first step: for noise that is correlated in time.

        Returns:
          `action`, int32 `[E]` or float32 `[E, A]`, and `extras`, a pytree of `[E, ...]` (the
          behaviour's mean and variance ...), or None.
        """
        ...


class Greedy(Protocol):
    """Choose actions without exploration."""

    def __call__(self, state: State, obs: Tree, /) -> Array:
        """Return the actions `[E, ...]` for observations `[E, ...]`."""
        ...


class UpdateAgent(Protocol):
    """Take one gradient step."""

    def __call__(self, state: State, sample: Sample, key: Array, /) -> tuple[State, Info]:
        """Return the state after a step on a batch `[B, ...]`, and what it tells."""
        ...


class FeedbackOfAgent(Protocol):
    """Tell what an update would, without learning."""

    def __call__(self, state: State, transition: Transition, key: Array, /) -> dict[str, Array]:
        """Return the feedback that `update` would give about transitions `[B, ...]`.

        Returns:
          `[B]` float32 each, by name.
        """
        ...


class Agent(NamedTuple):
    """An agent as pure functions over its own state."""

    init: InitAgent
    act: Act
    greedy: Greedy
    update: UpdateAgent
    feedback: FeedbackOfAgent
    extras_of_action: bool = True  # extras tell of the action with which they came (its density):
    # no other action may be taken in its place, such as a random one in the warm-up
