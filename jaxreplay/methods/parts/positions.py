"""How far each stored transition lies behind its episode's start, for walks that must not cross it.

Counted as transitions arrive, so that a walk of any length needs one read, not one per step.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay._internal import buffer, counters
from jaxreplay._internal.buffer import Buffer
from jaxreplay.ring import Ring
from jaxreplay.types import Array


class Positions(NamedTuple):
    """Positions within episodes, in steps of one environment."""

    steps: Buffer  # [C] int32, steps since the episode's first stored transition
    latest: Array  # [E] int32, the same of each lane's newest transition


def init(ring: Ring) -> Positions:
    """Make the positions of an empty ring."""
    lanes = jnp.full(ring.num_envs, -1, jnp.int32)
    return Positions(jnp.zeros(ring.capacity, jnp.int32), lanes)


def add(positions: Positions, slots: Array, first: Array) -> Positions:
    """Count the new transitions at `slots` `[E]`; `first` `[E]` bool starts an episode."""
    latest = jnp.where(first, 0, counters.increment(positions.latest))
    steps = buffer.write(positions.steps, slots, latest)
    return Positions(steps, latest)


def end(positions: Positions) -> Positions:
    """Let the next transition of every lane start an episode."""
    return positions._replace(latest=jnp.full_like(positions.latest, -1))
