"""Batches of the newest transitions, each sampled once, for on-policy agents such as PPO."""

import dataclasses

import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay import ring as ring_
from jaxreplay.methods.uniform import Uniform
from jaxreplay.methods.windows import Aux
from jaxreplay.option import Config
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import Array, Draw, Requirements


@dataclasses.dataclass(frozen=True)
class LatestConfig(Config):
    """Config of `latest`, a method without hyperparameters."""


@dataclasses.dataclass(frozen=True)
class Latest(Uniform):
    """Samples the newest B transitions, oldest first, with importance weights of 1.

    The training loop must add B transitions between batches (`Requirements.all_new`), and B must be
    a multiple of the number of environments E. `Aux.slots` `[B / E, E]` contains the batch's slots
    in chronological order. If fewer than B transitions are stored, the missing entries of
    the batch have weight 0.
    """

    needs_whole = "its batches are rollouts of all environments, in order"

    @property
    def requires(self) -> Requirements:
        return Requirements(single_steps=True, all_new=True, new_steps=True)

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        if batch_size % num_envs:
            raise ValueError(
                f"batch_size must be a multiple of num_envs {num_envs}, such as "
                f"{max(1, batch_size // num_envs) * num_envs}, got {batch_size}"
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


sampler = Latest


def method(config: LatestConfig = LatestConfig()) -> Method:
    """Return on-policy replay: the sampler, and an objective that averages losses."""
    return Method(sampler(), objectives.plain())
