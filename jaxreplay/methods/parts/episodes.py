"""Positions of transitions within episodes, sequences of steps, and episodes to forget."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import buffer, counters
from jaxreplay import ring as ring_
from jaxreplay.buffer import Buffer
from jaxreplay.loops import varying
from jaxreplay.ring import Ring
from jaxreplay.types import IGNORED, Array, Sample, Tree, get_field, has_field


class Positions(NamedTuple):
    """Positions within episodes, counted in steps of one environment.

    Positions are computed when transitions are added. A single read then gives the number of
    preceding steps in the same episode.
    """

    steps: Buffer  # [C] int32, steps since the episode's first stored transition
    latest: Array  # [E] int32, position of the newest transition; -1 initially, after
    # `end_positions`, and after a step whose `last` is True in `add_steps`


def init_positions(ring: Ring) -> Positions:
    """Return initial positions, for an empty ring buffer."""
    latest = jnp.full(ring.num_envs, -1, jnp.int32)
    return Positions(jnp.zeros(ring.capacity, jnp.int32), latest)


def add_positions(positions: Positions, slots: Array, first: Array) -> Positions:
    """Record positions of new transitions at `slots` `[E]`; `first` `[E]` marks episode starts."""
    # After 2^31 steps without an end, positions go on as in another episode.
    latest = jnp.where(first, 0, counters.increment(positions.latest, counters.rewind(1)))
    return Positions(buffer.write(positions.steps, slots, latest), latest)


def end_positions(positions: Positions) -> Positions:
    """Make the next transition of every environment start a new episode."""
    return positions._replace(latest=jnp.full_like(positions.latest, -1))


def check_boundaries(ring: Ring) -> None:
    """Raise ValueError unless transitions have the field `first`, `last`, or both."""
    blank = ring_.gather(ring, jnp.zeros(1, jnp.int32))
    if not (has_field(blank, "last") or has_field(blank, "first")):
        raise ValueError(
            "the example transition must have the field 'last' or 'first', got a "
            f"{type(blank).__name__} with neither; store whether a step ends or starts an "
            "episode (always False if the task has no episodes)"
        )


def add_steps(positions: Positions, slots: Array, transition: Tree) -> Positions:
    """Record positions of new transitions with the field `first`, `last`, or both."""
    first = jnp.zeros(slots.shape, bool)
    if has_field(transition, "first"):
        first = get_field(transition, "first").astype(bool)
    positions = add_positions(positions, slots, first)
    if has_field(transition, "last"):
        last = get_field(transition, "last").astype(bool)
        positions = positions._replace(latest=jnp.where(last, -1, positions.latest))
    return positions


def follow(positions: Positions, ring: Ring, first: Array, length: int) -> tuple[Array, Array]:
    """Return the slots of sequences that start at `first` `[B]` int32.

    Returns:
      The slots `[B, T]` of T successive steps, where T is `length`, and a mask `[B, T]` bool of the
      steps in the same episode as the first step. If a sequence extends past the newest step, the
      slot of the newest step is repeated.
    """
    steps = jnp.arange(length, dtype=jnp.int32)
    later = jnp.minimum(steps, ring_.age(ring, first)[:, None])
    slots = (first[:, None] + later * ring.num_envs) % ring.capacity
    position = buffer.read(positions.steps, slots.ravel()).reshape(slots.shape)
    return slots, position == position[:, :1] + steps


def still_stored(ring: Ring, sample: Sample, valid: Array, at: Array | int) -> Array:
    """Return the slots `[B]` int32 of step `at` of each sequence, or `IGNORED`.

    A slot is `IGNORED` if its step has been overwritten since sampling, or if no step of its
    sequence is valid.

    Args:
      ring: the ring buffer.
      sample: `[B, T]`, as passed to `Sampler.update`.
      valid: `[B, T]` bool, mask of steps with feedback whose index is not `IGNORED`.
      at: position of the step in its sequence, `[B]` int32 or an integer.
    """
    # The index of step `at` itself may be `IGNORED`: derive its slot from a valid step.
    at = jnp.broadcast_to(at, valid.shape[:1])
    step = jnp.argmax(valid, axis=1).astype(jnp.int32)
    slots = (pick(sample.indices, step) - (step - at) * ring.num_envs) % ring.capacity
    stored = valid.any(axis=1) & (ring_.version(ring, slots) == pick(sample.version, at))
    return jnp.where(stored, slots, IGNORED)


def pick(values: Array, at: Array) -> Array:
    """Return step `at` `[B]` int32 of each sequence, `[B, ...]`, from `values` `[B, T, ...]`."""
    at = at.reshape(-1, *[1] * (values.ndim - 1))
    return jnp.take_along_axis(values, at, axis=1)[:, 0]


class Spans(NamedTuple):
    """Extents of stored episodes; `read_spans` reads only two numbers per transition."""

    links: Buffer  # [C] int32, number of earlier steps in the episode of each step; for the first
    # step of an episode, minus the number of later steps
    latest: Array  # [E] int32, position of the newest transition; -1 initially and after
    # `end_spans`
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
    values = buffer.after(overwritten, values)
    return Spans(buffer.write(spans.links, places, values), latest, cut)


def end_spans(spans: Spans) -> Spans:
    """Make the next transition of every environment start a new episode."""
    return spans._replace(latest=jnp.full_like(spans.latest, -1))


def read_spans(spans: Spans, ring: Ring, slots: Array) -> tuple[Array, Array, Array]:
    """Return the numbers of stored earlier and later steps in the episodes of stored slots `[B]`.

    Returns:
      The number of earlier steps, the number of later steps, `[B]` int32 each, and whether the
      episode is running, `[B]` bool.
    """
    age, env = ring_.age(ring, slots), slots % ring.num_envs
    steps = jnp.maximum(buffer.read(spans.links, slots), 0)
    stored = ring_.size(ring) // ring.num_envs
    earlier = jnp.minimum(steps, jnp.maximum(stored - 1 - age, 0))
    starts = (slots - earlier * ring.num_envs) % ring.capacity
    later = -buffer.read(spans.links, starts) - steps
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

    def body(step: int, largest: Array) -> Array:
        bound = largest | (1 << (bits - 1 - step))
        return jnp.where(condition(bound), bound, largest)

    return jax.lax.fori_loop(0, bits, body, varying(jnp.zeros((), jnp.int32)))
