"""Draws of every stored transition, for the replay microscope."""

import jax.numpy as jnp

from experiments.environments.types import Array
from jaxreplay import buffer
from jaxreplay import ring as ring_
from jaxreplay.microscope import Counts
from jaxreplay.ring import Ring
from jaxreplay.types import IGNORED, Sample


def start(slots: int) -> Array:
    """Return counts `[C, 3]` int32 before any draw.

    The row of a slot has the version of the counted transition, its number of draws, and its age in
    steps at the first draw. A row is outdated if its version differs from the slot's version in the
    ring, so that rows need not be reset when slots are overwritten.
    """
    return jnp.zeros((slots, 3), jnp.int32)


def count(counts: Array, batch: Sample, ring: Ring) -> Array:
    """Return the counts after a batch is drawn, which may contain a transition several times.

    Args:
      counts: `[C, 3]`.
      batch: `[B]` or `[B, T]`, as drawn.
      ring: the ring from which the batch was drawn.
    """
    slots, version = batch.indices.ravel(), batch.version.ravel()
    is_first = buffer.read(counts, slots)[:, 0] != version
    begun = jnp.stack([version, jnp.zeros_like(version), ring_.age(ring, slots)], axis=1)
    counts = buffer.write(counts, jnp.where(is_first, slots, IGNORED), begun)
    return buffer.add(counts, slots, jnp.broadcast_to(jnp.array([0, 1, 0]), begun.shape))


def counted(counts: Array, ring: Ring) -> Counts:
    """Return the draws of the transition that is now in each slot; an empty slot has none."""
    slots = jnp.arange(ring.capacity, dtype=jnp.int32)
    is_drawn = (counts[:, 0] == ring_.version(ring, slots)) & (slots < ring_.size(ring))
    return Counts(jnp.where(is_drawn, counts[:, 1], 0), jnp.where(is_drawn, counts[:, 2], -1))
