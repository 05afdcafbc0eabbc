"""Flashbax: its flat buffers, prioritised and uniform.

They are used as documented: a timestep is stored without its next observation, which is read from
the next timestep, and the user computes importance weights and priorities.

In a compiled loop XLA copies their whole arrays where a read may come after the next write in
place. Two variants show what a user could do about that: an optimisation barrier after `sample`,
which XLA drops on CPU, and a fence, our own replay's remedy (`adapter.fenced`).
"""

import functools
from typing import Any

import flashbax
import jax
import jax.numpy as jnp

from experiments.benchmarks.peers import adapter
from experiments.benchmarks.peers.types import ALPHA, EPSILON, Peer
from jaxreplay.replay import Replay
from jaxreplay.types import Array, Sample, Transition


def _timestep(transition: Transition) -> dict[str, Any]:
    names = ("obs", "action", "reward", "discount")
    return {name: getattr(transition, name) for name in names}


def _transition(pair: Any) -> Transition:
    """Return the transitions from pairs of successive timesteps `[B, ...]`."""
    no = jnp.zeros(pair.first["reward"].shape, bool)
    return Transition(**pair.first, next_obs=pair.second["obs"], first=no, last=no)


def _prioritised(capacity: int, batch_size: int, *, barrier: bool = False) -> Replay:
    buffer = flashbax.make_prioritised_flat_buffer(
        max_length=capacity,
        min_length=batch_size,
        sample_batch_size=batch_size,
        priority_exponent=ALPHA,
        device=jax.default_backend(),
    )

    def sample(state: Any, key: Array) -> Sample:
        drawn = buffer.sample(state, key)
        if barrier:
            drawn = jax.lax.optimization_barrier(drawn)
        weights = adapter.weights(drawn.probabilities)
        return adapter.batch(drawn.indices, _transition(drawn.experience), weights)

    def update(state: Any, indices: Array, td_error: Array) -> Any:
        return buffer.set_priorities(state, indices, jnp.abs(td_error) + EPSILON)

    return adapter.as_replay(
        lambda example: buffer.init(_timestep(example)),
        lambda state, transition: buffer.add(state, _timestep(transition)),
        sample,
        update,
        buffer.can_sample,
        capacity,
        batch_size,
    )


def _fenced(capacity: int, batch_size: int) -> Replay:
    return adapter.fenced(_prioritised(capacity, batch_size))


def _uniform(capacity: int, batch_size: int) -> Replay:
    buffer = flashbax.make_flat_buffer(
        max_length=capacity, min_length=batch_size, sample_batch_size=batch_size
    )

    def sample(state: Any, key: Array) -> Sample:
        drawn = buffer.sample(state, key)
        unknown = jnp.full(batch_size, -1, jnp.int32)
        ones = jnp.ones(batch_size, jnp.float32)
        return adapter.batch(unknown, _transition(drawn.experience), ones)

    return adapter.as_replay(
        lambda example: buffer.init(_timestep(example)),
        lambda state, transition: buffer.add(state, _timestep(transition)),
        sample,
        lambda state, indices, td_error: state,
        buffer.can_sample,
        capacity,
        batch_size,
    )


def peers() -> tuple[Peer, ...]:
    """Return the prioritised buffer, as documented and with remedies, and the uniform one."""
    name = "flashbax prioritised"
    barrier = functools.partial(_prioritised, barrier=True)
    return (
        Peer(name, prioritised=True, replay=_prioritised),
        Peer(f"{name}, barrier", prioritised=True, replay=barrier),
        Peer(f"{name}, fence", prioritised=True, replay=_fenced),
        Peer("flashbax uniform", prioritised=False, replay=_uniform),
    )
