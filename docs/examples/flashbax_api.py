"""Flashbax's prioritised flat buffer, as a thin layer over jaxreplay: what corresponds to what.

| flashbax                           | jaxreplay                                               |
| ---------------------------------- | ------------------------------------------------------- |
| `init(timestep)`                   | `init(key, example)`                                    |
| `add(state, timestep)`             | `add(state, row)`, a row for each environment           |
| `sample(state, key)`               | `sample(state, key)`                                    |
| `.experience.first`, `.second`     | one transition, or a sequence of two steps, as here     |
| `.probabilities`                   | `.probability`, and `.weights` ready for use            |
| `set_priorities(state, indices, p)`| `update(state, batch, td_error=...)`                    |
| `can_sample(state)`                | `can_sample(state)`                                     |

Two things differ. In a compiled loop, `set_priorities` follows every `sample`: later writes then
wait for the reads of the batch, and nothing is copied. And `indices` are more than numbers: they
identify the contents of the slots, so that priorities for overwritten slots are dropped.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import Replay, ring
from jaxreplay.methods import sequences


class Pair(NamedTuple):
    """Two successive timesteps; whether an episode ended between them is in the first."""

    first: Any  # [B, ...]
    second: Any  # [B, ...]


class Drawn(NamedTuple):
    """A batch as flashbax gives it."""

    experience: Pair
    indices: Any  # of `set_priorities`: a pytree, not to be looked into
    probabilities: jax.Array  # [B]


class Buffer(NamedTuple):
    """The functions of a buffer."""

    init: Callable[..., Any]
    add: Callable[..., Any]
    sample: Callable[..., Drawn]
    can_sample: Callable[..., jax.Array]
    set_priorities: Callable[..., Any]


def make_prioritised_flat_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_batch_size: int | None = None,
    priority_exponent: float = 0.6,
) -> Buffer:
    """Make a buffer of timesteps, drawn in pairs; arguments are called as in flashbax."""
    num_envs = add_batch_size or 1
    config = sequences.SequencesConfig(length=2, period=1, alpha=priority_exponent, epsilon=0.0)
    replay = Replay(
        sequences.sampler(config),
        capacity=max_length,
        batch_size=sample_batch_size,
        num_envs=num_envs,
    )

    def init(timestep: Any) -> Any:
        return replay.init(jax.random.key(0), {"timestep": timestep, "last": jnp.zeros((), bool)})

    def add(state: Any, timestep: Any) -> Any:
        if add_batch_size is None:
            timestep = jax.tree.map(lambda x: jnp.asarray(x)[None], timestep)
        # Flashbax knows no episodes: pairs across their ends are the user's to leave out.
        return replay.add(state, {"timestep": timestep, "last": jnp.zeros(num_envs, bool)})

    def sample(state: Any, key: jax.Array) -> Drawn:
        batch = replay.sample(state, key)
        steps = batch.transition["timestep"]  # [B, 2, ...]
        first, second = (jax.tree.map(lambda x, at=at: x[:, at], steps) for at in (0, 1))
        return Drawn(Pair(first, second), batch._replace(transition=None), batch.probability)

    def can_sample(state: Any) -> jax.Array:
        return (ring.size(state.ring) >= min_length) & replay.can_sample(state)

    def set_priorities(state: Any, indices: Any, priorities: jax.Array) -> Any:
        both = jnp.stack([priorities, priorities], axis=1)  # largest and mean of a sequence alike
        return replay.update(state, indices, td_error=both)

    return Buffer(init, add, sample, can_sample, set_priorities)
