"""The functions of our replay for other replay buffers that are pure functions.

They then run in the same loops as ours: those of the benchmarks, and whole training loops.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from experiments.benchmarks.peers.types import BETA
from jaxreplay._internal import buffer
from jaxreplay.types import Array, Requirements, Sample, Transition


class PeerReplay(NamedTuple):
    """The functions of `jaxreplay.Replay` that loops call, of another buffer."""

    init: Callable[..., Any]
    add: Callable[..., Any]
    sample: Callable[..., Sample]
    update: Callable[..., Any]
    can_sample: Callable[..., Array]
    capacity: int
    batch_size: int
    num_envs: int = 1
    requires: Requirements = Requirements()


def as_replay(
    init: Callable[[Transition], Any],
    add: Callable[[Any, Transition], Any],
    sample: Callable[[Any, Array], Sample],
    update: Callable[[Any, Array, Array], Any],
    can_sample: Callable[[Any], Array],
    capacity: int,
    batch_size: int,
) -> Any:
    """Return a buffer's functions as those of a Replay of one environment.

    Args:
      init: one transition without a batch axis -> `S`.
      add: `S` and one such transition -> `S`.
      sample: `S` and a key -> a batch.
      update: `S`, indices `[B]` and TD errors `[B]` -> `S`.
      can_sample: `S` -> `[]` bool.
      capacity: transitions.
      batch_size: B.
    """
    return PeerReplay(
        init=lambda key, example: init(example),
        add=lambda state, transition: add(state, one(transition)),
        sample=sample,
        update=lambda state, batch, *, td_error, **_: update(state, batch.indices, td_error),
        can_sample=can_sample,
        capacity=capacity,
        batch_size=batch_size,
    )


def fenced(replay: PeerReplay) -> PeerReplay:
    """Return a replay whose writes, to the compiler, depend on the batch read before them.

    They use a zero computed from the batch, which XLA cannot recognise as zero.
    """

    def init(key: Array, example: Transition) -> tuple[Any, Array]:
        return replay.init(key, example), jnp.zeros((), jnp.int32)

    def add(state: tuple[Any, Array], transition: Transition) -> tuple[Any, Array]:
        inner, fence = state
        return replay.add(inner, buffer.after(fence, transition)), fence

    def sample(state: tuple[Any, Array], key: Array) -> Sample:
        batch = buffer.add_barrier(replay.sample(state[0], key))
        return batch._replace(indices=buffer.after(buffer.fence(batch), batch.indices))

    def update(state: tuple[Any, Array], batch: Sample, **feedback: Array) -> tuple[Any, Array]:
        inner = replay.update(state[0], batch, **feedback)
        return inner, state[1] + buffer.fence(batch.indices)

    return replay._replace(
        init=init,
        add=add,
        sample=sample,
        update=update,
        can_sample=lambda state: replay.can_sample(state[0]),
    )


def one(transition: Transition) -> Transition:
    """Return the single transition that is added, `[1, ...]`, unbatched."""
    return Transition(*(field if field is None else field[0] for field in transition))


def weights(probabilities: Array) -> Array:
    """Return importance weights `[B]` of drawn rows, divided by their largest.

    The size of the buffer, a factor common to all, cancels.
    """
    raw = probabilities**-BETA
    return raw / raw.max()


def batch(indices: Array, transition: Transition, weights: Array) -> Sample:
    """Return drawn rows as a Sample; slots have no versions here."""
    return Sample(indices, transition, weights, version=jnp.zeros_like(indices))
