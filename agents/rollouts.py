"""Learning from rollouts: advantages along each environment, and epochs of minibatches."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from agents import common
from jaxreplay import returns
from jaxreplay.types import Array, Sample

S = TypeVar("S")  # agent state


def advantages(agent: str, sample: Sample, value: Array, next_value: Array, decay: float) -> Array:
    """Return generalised advantage estimates `[B]` of a rollout, see `returns.advantages`.

    The estimates plus `value` are lambda-returns: `G_t = r_t + d_t ((1 - lambda) V_{t+1} +
    lambda G_{t+1})`, and `G_t = r_t + d_t V_{t+1}` at the last step of an episode or rollout.

    Args:
      agent: name of the agent in error messages.
      sample: batch of the method `latest`.
      value: `[B]`, values of the observations.
      next_value: `[B]`, values of the next observations before any reset.
      decay: lambda.

    Raises:
      ValueError: If the batch is not from the method `latest`, or `decay` is outside of [0, 1].
    """
    shape = common.read_aux(agent, sample, "slots", "the replay method 'latest'").shape
    t = sample.transition
    return returns.advantages(
        t.reward.reshape(shape), t.discount.reshape(shape), t.last.reshape(shape),
        value.reshape(shape), next_value.reshape(shape), decay,
    ).ravel()  # fmt: skip


def train(
    step: Callable[[S, Any], tuple[S, dict[str, Array]]],
    state: S,
    steps: Any,
    key: Array,
    epochs: int,
    size: int,
) -> tuple[S, dict[str, Array]]:
    """Take gradient steps on minibatches of a batch, and return the state and mean metrics.

    Every epoch splits a new permutation of the batch into minibatches, and drops the last one if it
    is incomplete.

    Args:
      step: maps the agent state and a minibatch to the next state and metrics `[]`.
      state: agent state.
      steps: training data, a tree of arrays `[B, ...]`.
      key: PRNG key.
      epochs: passes over the batch.
      size: steps in a minibatch, at most B.
    """
    total = jax.tree.leaves(steps)[0].shape[0]
    whole = total // size * size

    def minibatch(state: S, rows: Array) -> tuple[S, dict[str, Array]]:
        return step(state, jax.tree.map(lambda x: x[rows], steps))

    def epoch(state: S, key: Array) -> tuple[S, dict[str, Array]]:
        order = jax.random.permutation(key, total)[:whole].reshape(-1, size)
        return jax.lax.scan(minibatch, state, order)

    state, metrics = jax.lax.scan(epoch, state, jax.random.split(key, epochs))
    return state, {name: x.mean() for name, x in metrics.items()}
