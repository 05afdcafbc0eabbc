"""Uniformly sampled windows of consecutive steps, for agents that learn from trajectories.

Batches have a flat shape `[B]`, and windows may start at any step. For recurrent agents, use
`sequences` instead, which samples `[B, T]` sequences that start at fixed steps of an episode.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import numerics, objectives
from jaxreplay import ring as ring_
from jaxreplay.methods.uniform import Uniform
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import Array, Draw, Provision, Requirements


@dataclasses.dataclass(frozen=True)
class WindowsConfig(Config):
    """Hyperparameters of window replay."""

    length: int = option(
        16, "T: consecutive steps per window; a batch contains B / T windows", at_least=1
    )


class Aux(NamedTuple):
    """The slots of a flat batch, arranged with a time axis."""

    slots: Array  # [T, B / T] int32, T: steps per window, B: batch size


@dataclasses.dataclass(frozen=True)
class Windows(Uniform):
    """Samples windows of T consecutive steps from one environment, with importance weights of 1.

    All windows are equally likely and sampled with replacement. A window may contain the end of one
    episode (marked by `last`) and the beginning of the next episode, but never crosses the write
    cursor. Therefore, the oldest and newest T - 1 steps occur in fewer windows than other steps.
    The batch size must be a multiple of T and at least T times the number of environments.
    """

    needs_whole = "it draws windows of several transitions"

    config: WindowsConfig = WindowsConfig()

    @property
    def requires(self) -> Requirements:
        return Requirements(single_steps=True)

    @property
    def provides(self) -> frozenset[Provision]:
        return frozenset({"trajectories"})

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        length = self.config.length
        least = length * num_envs
        if capacity < least:
            raise ValueError(
                f"capacity must be at least {least} (a window of {length} steps for each of "
                f"{num_envs} environments), got {capacity}"
            )
        if batch_size % length or batch_size < least:
            raise ValueError(
                f"batch_size must be a multiple of {length} (the window length) and at least "
                f"{least}, got {batch_size}"
            )

    def sample(self, state: None, ring: Ring, key: Array, batch_size: int) -> Draw:
        length, starts = self.config.length, self._starts(ring)
        key_step, key_env = jax.random.split(key)
        count = (batch_size // length,)
        oldest = length - 1 + numerics.integers(key_step, count, starts)
        environment = numerics.integers(key_env, count, ring.num_envs)
        age = oldest - jnp.arange(length, dtype=jnp.int32)[:, None]
        slots = ring_.recent(ring, age * ring.num_envs + environment)
        ready = self.ready(state, ring, batch_size)
        weights = jnp.where(ready, jnp.ones(batch_size, jnp.float32), 0.0)
        chance = self.probability(state, ring, slots.ravel(), batch_size)
        return Draw(slots.ravel(), weights, Aux(slots), chance)

    def probability(self, state: None, ring: Ring, slots: Array, batch_size: int) -> Array:
        length, starts = self.config.length, self._starts(ring)
        steps = ring_.size(ring) // ring.num_envs
        age = ring_.age(ring, slots)
        windows = jnp.minimum(jnp.minimum(age + 1, steps - age), length)
        windows = jnp.minimum(windows, starts)  # number of windows that contain each step
        chance = windows / (starts * length * ring.num_envs)
        ready = self.ready(state, ring, batch_size)
        return jnp.where((slots < ring_.size(ring)) & ready, chance, 0.0)

    def ready(self, state: None, ring: Ring, batch_size: int) -> Array:
        return ring_.size(ring) >= self.config.length * ring.num_envs

    def _starts(self, ring: Ring) -> Array:
        """Return the number of possible window starts per environment, `[]`, at least 1."""
        return jnp.maximum(ring_.size(ring) // ring.num_envs - self.config.length + 1, 1)


sampler = Windows


def method(config: WindowsConfig = WindowsConfig()) -> Method:
    """Return window replay: the sampler, and an objective that averages losses.

    Agents that compute targets along trajectories, such as ACER, read the time axis from
    `Sample.aux.slots`.
    """
    return Method(sampler(config), objectives.plain())
