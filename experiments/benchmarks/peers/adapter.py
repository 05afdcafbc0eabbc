"""Our own five verbs around other replay buffers that are pure functions.

They then run in the same loops as ours: those of the benchmarks, and whole training loops.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from experiments.benchmarks.peers.types import BETA
from jaxreplay._internal import buffer
from jaxreplay.types import Array, Replay, Sample, Transition


def as_replay(
    init: Callable[[Transition], Any],
    add: Callable[[Any, Transition], Any],
    sample: Callable[[Any, Array], tuple[Any, Sample]],
    update: Callable[[Any, Array, Array], Any],
    can_sample: Callable[[Any], Array],
    capacity: int,
    batch_size: int,
) -> Replay:
    """Make a Replay, for one environment, from a buffer's functions.

    Args:
      init: one unbatched transition -> `S`.
      add: `S` and one unbatched transition -> `S`.
      sample: `S` and a key -> `S` and a batch.
      update: `S`, indices `[B]` and TD errors `[B]` -> `S`.
      can_sample: `S` -> `[]` bool.
      capacity: transitions.
      batch_size: B.
    """

    def unknown(state: Any, slots: Array) -> Array:
        del state
        return jnp.full(slots.shape, jnp.nan)

    def nothing(state: Any) -> Mapping[str, Array]:
        del state
        return {}

    return Replay(
        init=lambda key, example: init(example),
        add=lambda state, transition: add(state, one(transition)),
        sample=sample,
        update=lambda state, batch, *, td_error, **_: update(state, batch.indices, td_error),
        observe=lambda state, episode_return, key: state,
        can_sample=can_sample,
        probability=unknown,
        metrics=nothing,
        end_episodes=unknown,
        add_rollout=unknown,
        capacity=capacity,
        num_envs=1,
        batch_size=batch_size,
    )


def fenced(replay: Replay) -> Replay:
    """Return a replay whose writes, to the compiler, depend on the batch read before them.

    They use a zero computed from the batch, which XLA cannot recognise as zero.
    """

    def init(key: Array, example: Transition) -> tuple[Any, Array]:
        return replay.init(key, example), jnp.zeros((), jnp.int32)

    def add(state: tuple[Any, Array], transition: Transition) -> tuple[Any, Array]:
        inner, fence = state
        return replay.add(inner, buffer.after(fence, transition)), fence

    def sample(state: tuple[Any, Array], key: Array) -> tuple[tuple[Any, Array], Sample]:
        inner, batch = buffer.settled(replay.sample(state[0], key))
        fence = buffer.fence(batch)
        return (inner, fence), batch._replace(indices=buffer.after(fence, batch.indices))

    def update(state: tuple[Any, Array], batch: Sample, **feedback: Array) -> tuple[Any, Array]:
        return replay.update(state[0], batch, **feedback), state[1]

    return replay._replace(
        init=init,
        add=add,
        sample=sample,
        update=update,
        can_sample=lambda state: replay.can_sample(state[0]),
    )


def one(transition: Transition) -> Transition:
    """Return the single transition that is added, `[1, ...]`, unbatched."""
    return Transition(*(field if isinstance(field, tuple) else field[0] for field in transition))


def weights(probabilities: Array) -> Array:
    """Return importance weights `[B]` of drawn rows, divided by their largest.

    The size of the buffer, a factor common to all, cancels.
    """
    raw = probabilities**-BETA
    return raw / raw.max()


def batch(indices: Array, transition: Transition, weights: Array) -> Sample:
    """Return drawn rows as a Sample; slots have no versions here."""
    return Sample(indices, transition, weights, version=jnp.zeros_like(indices))
