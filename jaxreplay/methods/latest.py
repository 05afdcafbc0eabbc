"""The newest transitions, each sampled once, for on-policy agents such as PPO."""

import dataclasses

import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay import ring as ring_
from jaxreplay.methods.uniform import Uniform
from jaxreplay.methods.windows import Aux
from jaxreplay.option import Config, check_config_class
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import Array, Draw, Requirements


@dataclasses.dataclass(frozen=True)
class LatestConfig(Config):
    """Config without hyperparameters."""


@dataclasses.dataclass(frozen=True)
class Latest(Uniform):
    """Returns the newest B transitions, oldest first, with weights of 1.

    The loop adds B transitions between two batches (`Requirements.all_new`), where B is a multiple
    of the number of environments E. `Aux.slots` `[B / E, E]` is the batch in order of time. Until B
    transitions are stored, the missing ones have a weight of 0.
    """

    @property
    def requires(self) -> Requirements:
        return Requirements(single_steps=True, all_new=True, new_steps=True)

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        if batch_size % num_envs:
            raise ValueError(
                f"batch_size is {batch_size}: it must be a multiple of num_envs {num_envs}, such "
                f"as {max(1, batch_size // num_envs) * num_envs}"
            )

    def sample(self, state: None, ring: Ring, key: Array, batch_size: int) -> Draw:
        num_envs = ring.num_envs
        order = jnp.arange(batch_size, dtype=jnp.int32).reshape(-1, num_envs)[::-1]
        slots = ring_.recent(ring, order)
        steps = jnp.arange(batch_size // num_envs)[::-1]
        stored = jnp.repeat(steps < ring_.size(ring) // num_envs, num_envs)
        weights = stored.astype(jnp.float32)
        return Draw(slots.ravel(), weights, Aux(slots), weights / batch_size)

    def probability(self, state: None, ring: Ring, slots: Array, batch_size: int) -> Array:
        newest = ring_.age(ring, slots) < batch_size // ring.num_envs
        inside = newest & (slots < ring_.size(ring))
        return jnp.where(inside, jnp.float32(1.0 / batch_size), 0.0)


def sampler() -> Latest:
    """Return the sampler of the newest transitions."""
    return Latest()


@check_config_class
def method(config: LatestConfig = LatestConfig()) -> Method:
    """Return the method of on-policy agents: the newest transitions, and the mean of the loss."""
    return Method(sampler(), objectives.plain())
