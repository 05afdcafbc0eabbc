"""A custom sampler with an array of its own: of two slots, the one that was drawn less often."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import Draw, Method, Sampler, buffer, objectives, ring
from jaxreplay.option import Config


@dataclasses.dataclass(frozen=True)
class SeldomConfig(Config):
    """This method has no options."""


class SeldomState(NamedTuple):
    """How often each stored transition was drawn."""

    counts: buffer.Buffer  # [C] float32


@dataclasses.dataclass(frozen=True)
class Seldom(Sampler):
    """Draws two slots uniformly for each row, and keeps the slot with the smaller count."""

    config: SeldomConfig = SeldomConfig()

    def init(self, key, memory):
        return SeldomState(jnp.zeros(memory.capacity, jnp.float32))

    def add(self, state, memory, slots, transition, **feedback):
        return SeldomState(buffer.write(state.counts, slots, jnp.zeros(slots.shape)))

    def sample(self, state, memory, key, batch_size):
        slots = jax.random.randint(key, (2, batch_size), 0, jnp.maximum(ring.size(memory), 1))
        counts = buffer.read(state.counts, slots.ravel()).reshape(2, batch_size)
        chosen = jnp.where(counts[0] <= counts[1], *slots)
        # The weights depend on the read, so that the next write follows it.
        return Draw(chosen, buffer.after(counts, jnp.ones(batch_size)))

    def update(self, state, memory, sample, **feedback):
        counts = buffer.add(state.counts, sample.indices, jnp.ones(sample.indices.shape))
        return SeldomState(counts)

    def probability(self, state, memory, slots, batch_size):
        size = jnp.maximum(ring.size(memory), 1)
        stored = jnp.arange(memory.capacity) < size
        ordered = jnp.sort(jnp.where(stored, state.counts, -1.0))  # empty slots are first
        counts = state.counts[slots]
        above = memory.capacity - jnp.searchsorted(ordered, counts, side="right")
        not_below = memory.capacity - jnp.searchsorted(ordered, counts, side="left")
        chance = (above + not_below) / size.astype(jnp.float32) ** 2
        return jnp.where(slots < ring.size(memory), chance, 0.0)


def method(config=SeldomConfig()):
    return Method(Seldom(config), objectives.plain())
