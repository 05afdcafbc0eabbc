"""The shortest prioritised replay in JAX: every batch takes a cumulative sum of all priorities."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks.peers import adapter
from experiments.benchmarks.peers.types import ALPHA, EPSILON, Peer
from jaxreplay.replay import Replay
from jaxreplay.types import Array, Sample, Transition


class _State(NamedTuple):
    rows: Transition  # [C, ...]
    priorities: Array  # [C] float32, to the power of alpha
    largest: Array  # [] float32
    added: Array  # [] int32


def _replay(capacity: int, batch_size: int) -> Replay:
    def init(example: Transition) -> _State:
        rows = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), example)
        return _State(rows, jnp.zeros(capacity), jnp.ones(()), jnp.zeros((), jnp.int32))

    def add(state: _State, transition: Transition) -> _State:
        slot = state.added % capacity
        rows = jax.tree.map(lambda all, new: all.at[slot].set(new), state.rows, transition)
        priorities = state.priorities.at[slot].set(state.largest)
        return _State(rows, priorities, state.largest, state.added + 1)

    def sample(state: _State, key: Array) -> Sample:
        sums = jnp.cumsum(state.priorities)
        targets = jax.random.uniform(key, (batch_size,)) * sums[-1]
        indices = jnp.searchsorted(sums, targets, side="right").astype(jnp.int32)
        indices = jnp.minimum(indices, capacity - 1)
        rows = jax.tree.map(lambda x: x[indices], state.rows)
        weights = adapter.weights(state.priorities[indices] / sums[-1])
        return adapter.batch(indices, rows, weights)

    def update(state: _State, indices: Array, td_error: Array) -> _State:
        new = (jnp.abs(td_error) + EPSILON) ** ALPHA
        largest = jnp.maximum(state.largest, new.max())
        return state._replace(priorities=state.priorities.at[indices].set(new), largest=largest)

    def can_sample(state: _State) -> Array:
        return state.added >= batch_size

    return adapter.as_replay(init, add, sample, update, can_sample, capacity, batch_size)


def peers() -> tuple[Peer, ...]:
    """Return the one buffer."""
    return (Peer("jax cumsum", prioritised=True, replay=_replay),)
