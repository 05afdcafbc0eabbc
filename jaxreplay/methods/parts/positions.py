"""Positions of stored transitions within their episodes.

Positions are computed when transitions are added, so that the number of preceding steps in the same
episode is available from a single read.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay._internal import buffer, counters
from jaxreplay._internal.buffer import Buffer
from jaxreplay.ring import Ring
from jaxreplay.types import Array


class Positions(NamedTuple):
    """Positions within episodes, counted in steps of one environment."""

    steps: Buffer  # [C] int32, steps since the episode's first stored transition
    latest: Array  # [E] int32, position of the newest transition; -1 initially and after `end`


def init(ring: Ring) -> Positions:
    """Return initial positions, for an empty ring buffer."""
    latest = jnp.full(ring.num_envs, -1, jnp.int32)
    return Positions(jnp.zeros(ring.capacity, jnp.int32), latest)


def add(positions: Positions, slots: Array, first: Array) -> Positions:
    """Record positions of new transitions at `slots` `[E]`; `first` `[E]` marks episode starts."""
    latest = jnp.where(first, 0, counters.increment(positions.latest))
    steps = buffer.write(positions.steps, slots, latest)
    return Positions(steps, latest)


def end(positions: Positions) -> Positions:
    """Make the next transition of every environment start a new episode."""
    return positions._replace(latest=jnp.full_like(positions.latest, -1))
