"""Stretches of successive steps, drawn uniformly: for agents that learn from trajectories.

Batches are flat, as every agent of this repository takes them, and any step may begin a window;
`sequences` has stretches `[B, T]` that keep to the episodes, for recurrent agents.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay import ring as ring_
from jaxreplay._internal import numerics
from jaxreplay.methods.uniform import Uniform
from jaxreplay.option import Config, check_config_class, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import Array, Draw, Provision, Requirements


@dataclasses.dataclass(frozen=True)
class WindowsConfig(Config):
    """Hyperparameters of replayed windows."""

    length: int = option(
        16, "T: successive steps of one environment; a batch is B / T windows", at_least=1
    )


class Aux(NamedTuple):
    """Where the rows of a batch stand in time."""

    slots: Array  # [T, B / T] int32, time first; a batch is this, flattened


@dataclasses.dataclass(frozen=True)
class Windows(Uniform):
    """Draws windows of T successive steps of one environment, with weights of 1.

    A window may hold the end of one episode and the beginning of the next (`last` marks the end),
    and never crosses the write cursor: the oldest and newest T - 1 steps of the ring are in fewer
    windows than the others. The batch size is a multiple of T, at least T times the environments.
    """

    config: WindowsConfig = WindowsConfig()

    @property
    def requires(self) -> Requirements:
        """Single steps."""
        return Requirements(single_steps=True)

    @property
    def provides(self) -> frozenset[Provision]:
        """Trajectories, at the slots in `Aux`."""
        return frozenset({"trajectories"})

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        """Raise ValueError unless the batch is a multiple of T that the capacity holds."""
        length = self.config.length
        least = length * num_envs
        if capacity < least:
            raise ValueError(
                f"capacity {capacity} does not hold windows of {length} steps: use at least "
                f"{least}, {length} for each of {num_envs} environments"
            )
        if batch_size % length or batch_size < least:
            raise ValueError(
                f"batch_size {batch_size} does not hold windows of {length} steps: use a multiple "
                f"of {length}, at least {least}"
            )

    def sample(self, state: None, ring: Ring, key: Array, batch_size: int) -> Draw:
        """Draw windows; indices are `[B]`, time first."""
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
        """Return the share of windows that a slot is in."""
        length, starts = self.config.length, self._starts(ring)
        steps = ring_.size(ring) // ring.num_envs
        age = ring_.age(ring, slots)
        windows = jnp.minimum(jnp.minimum(age + 1, steps - age), length)
        windows = jnp.minimum(windows, starts)  # that a step is in
        chance = windows / (starts * length * ring.num_envs)
        ready = self.ready(state, ring, batch_size)
        return jnp.where((slots < ring_.size(ring)) & ready, chance, 0.0)

    def ready(self, state: None, ring: Ring, batch_size: int) -> Array:
        """Return whether a window is stored; batches are drawn with replacement."""
        del state, batch_size
        return ring_.size(ring) >= self.config.length * ring.num_envs

    def _starts(self, ring: Ring) -> Array:
        """Return the number of steps at which a window may start, `[]`: the oldest ones."""
        return jnp.maximum(ring_.size(ring) // ring.num_envs - self.config.length + 1, 1)


@check_config_class
def sampler(config: WindowsConfig = WindowsConfig()) -> Windows:
    """Return the sampler of windows."""
    return Windows(config)


@check_config_class
def method(config: WindowsConfig = WindowsConfig()) -> Method:
    """Return replayed windows, with an objective of unweighted means."""
    return Method(sampler(config), objectives.plain())
