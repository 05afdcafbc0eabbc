"""A custom sampler: uniform draws from the newest transitions."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxreplay import Draw, Method, Sampler, objectives, ring
from jaxreplay.option import Config, option


@dataclasses.dataclass(frozen=True)
class NewestConfig(Config):
    """Hyperparameters of replay of the newest transitions."""

    share: float = option(0.5, "part of the stored transitions that is used", above=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class Newest(Sampler):
    """Draws uniformly from the newest transitions, with weights of 1."""

    config: NewestConfig

    def init(self, key, memory):
        return jnp.zeros((), jnp.int32)  # batches so far

    def sample(self, state, memory, key, batch_size):
        order = jax.random.randint(key, (batch_size,), 0, self.count(memory))
        return Draw(ring.recent(memory, order), jnp.ones(batch_size))

    def update(self, state, memory, sample, **feedback):
        return state + 1

    def probability(self, state, memory, slots, batch_size):
        order = ring.age(memory, slots) * memory.num_envs + slots % memory.num_envs
        drawn = (order < self.count(memory)) & (slots < ring.size(memory))
        return jnp.where(drawn, 1.0 / self.count(memory), 0.0)

    def metrics(self, state, memory):
        return {"batches": state.astype(jnp.float32)}

    def count(self, memory):
        size = jnp.maximum(ring.size(memory), 1)
        return jnp.minimum(jnp.ceil(self.config.share * size).astype(jnp.int32), size)


def method(config=NewestConfig()):
    return Method(Newest(config), objectives.plain())
