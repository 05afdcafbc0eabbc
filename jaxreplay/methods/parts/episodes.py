"""Positions of stored transitions within episodes, and selection of episodes to forget."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import ring as ring_
from jaxreplay._internal import buffer, counters
from jaxreplay._internal.buffer import Buffer
from jaxreplay._internal.tracing import varying
from jaxreplay.ring import Ring
from jaxreplay.types import IGNORED, Array


class Positions(NamedTuple):
    """Positions within episodes, counted in steps of one environment.

    Positions are computed when transitions are added. A single read then gives the number of
    preceding steps in the same episode.
    """

    steps: Buffer  # [C] int32, steps since the episode's first stored transition
    latest: Array  # [E] int32, position of the newest transition; -1 initially and after `end`


def init_positions(ring: Ring) -> Positions:
    """Return initial positions, for an empty ring buffer."""
    latest = jnp.full(ring.num_envs, -1, jnp.int32)
    return Positions(jnp.zeros(ring.capacity, jnp.int32), latest)


def add_positions(positions: Positions, slots: Array, first: Array) -> Positions:
    """Record positions of new transitions at `slots` `[E]`; `first` `[E]` marks episode starts."""
    latest = jnp.where(first, 0, counters.increment(positions.latest))
    return Positions(buffer.write(positions.steps, slots, latest), latest)


def end_positions(positions: Positions) -> Positions:
    """Make the next transition of every environment start a new episode."""
    return positions._replace(latest=jnp.full_like(positions.latest, -1))


class Spans(NamedTuple):
    """Extents of stored episodes, which a read of two numbers per transition gives."""

    links: Buffer  # [C] int32, number of earlier steps in the episode of each step; of a first
    # step, minus the number of later ones
    latest: Array  # [E] int32, position of the newest transition; -1 initially and after `end`
    cut: Array  # [E] int32, slot of the last step of the episode whose first step was overwritten


def init_spans(ring: Ring) -> Spans:
    """Return initial extents, for an empty ring buffer."""
    latest = jnp.full(ring.num_envs, -1, jnp.int32)
    return Spans(jnp.zeros(ring.capacity, jnp.int32), latest, jnp.zeros_like(latest))


def add_spans(spans: Spans, ring: Ring, slots: Array, first: Array) -> Spans:
    """Record new transitions at `slots` `[E]`; `first` `[E]` marks the starts of episodes."""
    overwritten = buffer.once(buffer.read(spans.links, slots))
    ends = (slots - overwritten * ring.num_envs) % ring.capacity
    latest = jnp.where(first, 0, counters.increment(spans.latest))
    # The first step of a running episode that is longer than the ring buffer is not stored.
    longer = latest >= ring_.num_steps(ring)
    cut = jnp.where(longer, slots, jnp.where(overwritten <= 0, ends, spans.cut))
    starts = (slots - latest * ring.num_envs) % ring.capacity
    starts = jnp.where((latest > 0) & ~longer, starts, IGNORED)
    places, values = jnp.concatenate([slots, starts]), jnp.concatenate([latest, -latest])
    values = buffer.after(buffer.fence(overwritten), values)
    return Spans(buffer.write(spans.links, places, values), latest, cut)


def end_spans(spans: Spans) -> Spans:
    """Make the next transition of every environment start a new episode."""
    return spans._replace(latest=jnp.full_like(spans.latest, -1))


def read_spans(spans: Spans, ring: Ring, slots: Array) -> tuple[Array, Array, Array]:
    """Return the numbers of stored earlier and later steps in the episodes of stored slots `[B]`.

    Returns:
      Both numbers, `[B]` int32, and whether the episode is running, `[B]` bool.
    """
    age, env = ring_.age(ring, slots), slots % ring.num_envs
    steps = jnp.maximum(buffer.read_few(spans.links, slots), 0)
    stored = ring_.size(ring) // ring.num_envs
    earlier = jnp.minimum(steps, jnp.maximum(stored - 1 - age, 0))
    starts = (slots - earlier * ring.num_envs) % ring.capacity
    later = -buffer.read_few(spans.links, starts) - steps
    later = jnp.where(earlier == steps, later, age - ring_.age(ring, spans.cut[env]))
    running = age <= spans.latest[env]
    return earlier, jnp.where(running, age, later), running


def choose_forgotten(share: Array, steps: Array, oldness: Array, memory: int) -> Array:
    """Return a mask `[n]` of the fewest episodes to forget so that at most `memory` steps remain.

    Episodes are forgotten in descending order of their fraction of far-policy steps, `share` `[n]`
    float32 in [0, 1]; ties are broken by age, oldest first (Novati & Koumoutsakos 2019, Alg. 1).
    With equal values of `share`, the order is first in, first out. At least one episode remains.
    Bisection finds the last episode to forget in about 60 passes over the arrays, without sorting.

    `steps` `[n]` int32 are the lengths of the episodes, 0 for entries without an episode. `oldness`
    `[n]` int32 are unique non-negative numbers that are larger for older episodes.
    """
    exists = steps > 0
    excess = steps.sum() - memory
    # The bit patterns of non-negative floats sort like the floats; values up to 1.0 use 30 bits.
    rank = jax.lax.bitcast_convert_type(share.astype(jnp.float32), jnp.int32)

    def freed(forgotten: Array) -> Array:
        return jnp.where(forgotten, steps, 0).sum()

    least = _largest(lambda bound: freed(rank >= bound) >= excess, bits=30)
    above, equal = rank > least, rank == least
    more = excess - freed(above)
    oldest = _largest(lambda bound: freed(equal & (oldness >= bound)) >= more, bits=31)
    forgotten = exists & (above | (equal & (oldness >= oldest)))
    kept = exists & (rank == jnp.where(exists, rank, 2**31 - 1).min())
    kept &= oldness == jnp.where(kept, oldness, 2**31 - 1).min()
    return forgotten & ~kept & (excess > 0)


def _largest(condition: Callable[[Array], Array], bits: int) -> Array:
    """Return the largest `bits`-bit integer that satisfies a monotone condition, or 0 if none."""

    def body(step: int, found: Array) -> Array:
        bound = found | (1 << (bits - 1 - step))
        return jnp.where(condition(bound), bound, found)

    return jax.lax.fori_loop(0, bits, body, varying(jnp.zeros((), jnp.int32)))
