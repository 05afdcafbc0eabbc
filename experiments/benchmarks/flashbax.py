"""flashbax: its flat buffers, prioritised and uniform, used as documented.

A timestep is stored without its next observation, which is read from the next timestep. Importance
weights and priorities are computed by the user.
"""

from types import SimpleNamespace
from typing import Any

import flashbax
import jax
import jax.numpy as jnp

from jaxreplay.methods import per
from jaxreplay.types import Array, Sample, Transition

PER = per.PERConfig()  # of our prioritised replay


def prioritised(capacity: int, batch_size: int, platform: str | None = None) -> Any:
    """Return the prioritised flat buffer with the exponents of our PER."""
    buffer = flashbax.make_prioritised_flat_buffer(
        max_length=capacity, min_length=batch_size, sample_batch_size=batch_size,
        priority_exponent=PER.alpha, device=platform or jax.default_backend(),
    )  # fmt: skip

    def sample(state: Any, key: Array) -> Sample:
        drawn = buffer.sample(state, key)
        # The number of transitions, a factor of all weights, cancels.
        weights = drawn.probabilities**-PER.beta
        return _batch(drawn.indices, drawn.experience, weights / weights.max())

    def update(state: Any, batch: Sample, *, td_error: Array, **others: Array) -> Any:
        del others
        return buffer.set_priorities(state, batch.indices, jnp.abs(td_error) + PER.epsilon)

    return _replay(buffer, capacity, batch_size, sample, update)


def uniform(capacity: int, batch_size: int, platform: str | None = None) -> Any:
    """Return the uniform flat buffer."""
    buffer = flashbax.make_flat_buffer(
        max_length=capacity, min_length=batch_size, sample_batch_size=batch_size
    )

    def sample(state: Any, key: Array) -> Sample:
        unknown = jnp.full(batch_size, -1, jnp.int32)
        return _batch(unknown, buffer.sample(state, key).experience, jnp.ones(batch_size))

    return _replay(buffer, capacity, batch_size, sample, lambda state, batch, **feedback: state)


def _replay(buffer: Any, capacity: int, batch_size: int, sample: Any, update: Any) -> Any:
    """Return the functions and sizes of a `jaxreplay.Replay` that the benchmark's loop uses."""

    def add(state: Any, transitions: Transition) -> Any:
        transition = jax.tree.map(lambda field: field[0], transitions)  # of one environment
        return buffer.add(state, _timestep(transition))

    def init(key: Array, example: Transition) -> Any:
        del key
        return buffer.init(_timestep(example))

    return SimpleNamespace(
        init=init, add=add, sample=sample, update=update, capacity=capacity, batch_size=batch_size
    )


def _timestep(transition: Transition) -> dict[str, Any]:
    names = ("obs", "action", "reward", "discount")
    return {name: getattr(transition, name) for name in names}


def _batch(indices: Array, pair: Any, weights: Array) -> Sample:
    """Return pairs of successive timesteps `[B, ...]` as a batch; slots have no versions."""
    no = jnp.zeros(weights.shape, bool)
    transition = Transition(**pair.first, next_obs=pair.second["obs"], first=no, last=no)
    return Sample(indices, transition, weights, version=jnp.zeros_like(indices))
