"""The newest transitions, each learned from once: what on-policy agents want."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay import ring as ring_
from jaxreplay.methods import uniform
from jaxreplay.option import Config, takes_own_config
from jaxreplay.requirements import Requirements
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Draw, Method, Sampler


@dataclasses.dataclass(frozen=True)
class LatestConfig(Config):
    """It has no hyperparameters."""


class Aux(NamedTuple):
    """Where the rows of a batch stand in time."""

    slots: Array  # [T, E] int32: T successive steps of E environments; a batch is this, flattened


def sampler() -> Sampler:
    """Make the sampler that returns the newest B transitions, oldest first, all with weight 1.

    The loop must take B new steps between two batches. B is a multiple of the environments. Until
    so many are stored, rows that are missing weigh 0.

    Raises:
      ValueError: by `make_replay`, where B is no such multiple. What the loop does, `check_loop`
        of `requirements` checks for training loops of ours; a loop of your own has to see to it.
    """

    def check(capacity: int, num_envs: int, batch_size: int) -> None:
        del capacity
        if batch_size % num_envs:
            raise ValueError(
                f"batch_size {batch_size} is not a multiple of the {num_envs} environments: use "
                f"{max(1, batch_size // num_envs) * num_envs}"
            )

    def sample(state: tuple[()], ring: Ring, key: Array, batch_size: int) -> Draw:
        del state, key
        lanes = ring.num_envs
        order = jnp.arange(batch_size, dtype=jnp.int32).reshape(-1, lanes)[::-1]
        slots = ring_.recent(ring, order)
        there = jnp.repeat(jnp.arange(batch_size // lanes)[::-1] < ring_.size(ring) // lanes, lanes)
        weights = there.astype(jnp.float32)
        return Draw(slots.ravel(), weights, Aux(slots), weights / batch_size)

    def probability(state: tuple[()], ring: Ring, slots: Array, batch_size: int) -> Array:
        del state
        newest = ring_.age(ring, slots) < batch_size // ring.num_envs
        inside = newest & (slots < ring_.size(ring))
        return jnp.where(inside, jnp.float32(1.0 / batch_size), 0.0)

    return uniform.sampler()._replace(
        sample=sample,
        probability=probability,
        requires=Requirements(single_steps=True, all_new=True, new_steps=True),
        check_sizes=check,
    )


@takes_own_config
def method(config: LatestConfig = LatestConfig(), updates: int | None = None) -> Method:
    """Make the method of on-policy agents; `updates` is not used."""
    del config, updates
    return Method(sampler(), objectives.plain())
