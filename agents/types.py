"""What an agent is: five pure functions, and the action spaces they act in."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax

Array = jax.Array


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


class Agent(NamedTuple):
    """An agent as pure functions over its own state `A`.

    * `init(key, obs, action) -> A`: one unbatched observation and action (shapes, dtypes).
    * `act(A, obs[E, ...], key, previous=None) -> (action[E, ...], extras)`: with exploration;
      `extras` is a pytree of `[E, ...]` to be stored with the step (the behaviour's mean and
      variance ...), or (). `previous` are the extras of the step before in the same episode, zeros
      at its first step: for noise that is correlated in time.
    * `greedy(A, obs[E, ...]) -> action[E, ...]`: without exploration.
    * `update(A, Sample, key) -> (A, Info)`: one gradient step.
    * `feedback(A, Transition[B], key) -> dict[str, [B]]`: the feedback that `update` would give about
      these transitions, without learning.
    """

    init: Callable[[Array, chex.ArrayTree, Array], Any]
    act: Callable[..., tuple[Array, chex.ArrayTree]]
    greedy: Callable[[Any, chex.ArrayTree], Array]
    update: Callable[[Any, Any, Array], tuple[Any, Info]]
    feedback: Callable[[Any, Any, Array], dict[str, Array]]
