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
from jaxreplay._internal import random_bits
from jaxreplay.methods import uniform
from jaxreplay.option import Config, option, takes_own_config
from jaxreplay.requirements import Requirements
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Draw, Method, Sampler


@dataclasses.dataclass(frozen=True)
class WindowsConfig(Config):
    """Hyperparameters of replayed windows."""

    length: int = option(
        16, "T: successive steps of one environment; a batch is B / T windows", at_least=1
    )


class Aux(NamedTuple):
    """Where the rows of a batch stand in time."""

    slots: Array  # [T, B / T] int32, time first; a batch is this, flattened


@takes_own_config
def sampler(config: WindowsConfig = WindowsConfig()) -> Sampler:
    """Make the sampler of windows: T successive steps of an environment, all weights 1.

    A window may hold the end of one episode and the beginning of the next (`last` tells), and
    never reaches across the write cursor: the ring's oldest and newest T - 1 rows are in fewer
    windows than the others. The batch size is a multiple of T, and at least T times the
    environments.

    Raises:
      ValueError: by `make_replay`, where the batch size is none of these, or the capacity less.
    """
    length = config.length

    def check(capacity: int, num_envs: int, batch_size: int) -> None:
        least = length * num_envs
        if capacity < least:
            raise ValueError(
                f"capacity {capacity} does not hold windows of {length} steps: use {least} at "
                f"least, {length} for each of {num_envs} environments"
            )
        if batch_size % length or batch_size < least:
            raise ValueError(
                f"batch_size {batch_size} does not hold windows of {length} steps: use a multiple "
                f"of {length}, at least {least}"
            )

    def starts(ring: Ring) -> Array:
        """Return how many rows a window may start at, `[]`; they are the oldest ones."""
        return jnp.maximum(ring_.size(ring) // ring.num_envs - length + 1, 1)

    def sample(state: tuple[()], ring: Ring, key: Array, batch_size: int) -> Draw:
        del state
        key_row, key_lane = jax.random.split(key)
        count = (batch_size // length,)
        behind = length - 1 + random_bits.integers(key_row, count, starts(ring))
        lane = random_bits.integers(key_lane, count, ring.num_envs)
        rows = behind - jnp.arange(length, dtype=jnp.int32)[:, None]  # behind the newest
        slots = ring_.recent(ring, rows * ring.num_envs + lane)
        weights = jnp.where(ready((), ring), jnp.ones(batch_size, jnp.float32), 0.0)
        chance = probability((), ring, slots.ravel(), batch_size)
        return Draw(slots.ravel(), weights, Aux(slots), chance)

    def probability(state: tuple[()], ring: Ring, slots: Array, batch_size: int) -> Array:
        del state, batch_size
        rows = ring_.size(ring) // ring.num_envs
        age = ring_.age(ring, slots)
        windows = jnp.minimum(jnp.minimum(age + 1, rows - age), length)
        windows = jnp.minimum(windows, starts(ring))  # that a step is in
        chance = windows / (starts(ring) * length * ring.num_envs)
        return jnp.where((slots < ring_.size(ring)) & ready((), ring), chance, 0.0)

    def ready(state: tuple[()], ring: Ring) -> Array:
        """Tell whether a window is stored; batches are drawn with replacement."""
        del state
        return ring_.size(ring) >= length * ring.num_envs

    return uniform.sampler()._replace(
        sample=sample,
        probability=probability,
        requires=Requirements(single_steps=True),
        provides=frozenset({"trajectories"}),
        ready=ready,
        check_sizes=check,
    )


@takes_own_config
def method(config: WindowsConfig = WindowsConfig(), updates: int | None = None) -> Method:
    """Make replayed windows: their sampler, and unweighted means; `updates` is not used."""
    del updates
    return Method(sampler(config), objectives.plain())
