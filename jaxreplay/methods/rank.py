"""Prioritised experience replay, rank-based variant (Schaul et al. 2016)."""

import dataclasses
import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import ring as ring_
from jaxreplay._internal import buffer
from jaxreplay._internal.buffer import Buffer
from jaxreplay.methods.parts.options import ImportanceOptions, WeightedLossOptions
from jaxreplay.methods.proportional import Odds
from jaxreplay.option import option, override
from jaxreplay.requirements import Requirements
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Draw, Method, Sample, Sampler, Transition

_PAPER = "Schaul et al. 2016"


@dataclasses.dataclass(frozen=True)
class RankConfig(WeightedLossOptions, ImportanceOptions):
    """Hyperparameters of rank-based prioritised replay."""

    alpha: float = option(
        0.7, "prioritisation exponent, 0 is uniform", f"{_PAPER}, Tab. 3", at_least=0
    )
    beta: float = override(ImportanceOptions, "beta", 0.5, f"{_PAPER}, Tab. 3")
    sort_every: int | None = option(
        None,
        "updates between two sorts; 1 is exact; none: a thousandth of the capacity",
        f"{_PAPER}, App. B.2.1",
        at_least=1,
    )
    sampling: Literal["segments", "iid", "greedy"] = option(
        "segments",
        "one draw in each of B segments of about equal mass, independent draws, or the B largest",
        f"{_PAPER}, Sec. 3.3 and Fig. 2",
    )
    weights: Literal["rank", "effective"] = option(
        "rank",
        "probability in the weights: of the rank (Eq. 1), or the one its segment really gives it",
        f"{_PAPER}, Sec. 3.4",
    )


class RankState(NamedTuple):
    """What was last seen of every slot, and the order at the latest sort."""

    abs_td: Buffer  # [C] float32, |TD error| when last replayed; never replayed: the largest so far
    order: Array  # [C] int32, slots by falling |TD error| at the latest sort
    sorted_at: Array  # [] int32, the ring's rows_added at the latest sort
    mass: Array  # [C] float32, running sum of rank^-alpha
    largest: Array  # [] float32, the largest |TD error| so far, initially 1
    updates: Array  # [] int32, a clock: calls of update


def segments(mass: Array, size: Array, count: int) -> tuple[Array, Array]:
    """Cut ranks 1..size into `count` segments of about equal probability.

    Segment j holds the ranks `start[j] + 1 .. end[j]`; its end is the first rank at which the
    running mass reaches (j+1)/count of the whole, moved where needed so that no segment is empty.

    Args:
      mass: `[C]`, the running sum of the ranks' masses.
      size: `[]` int32, how many ranks there are, at least `count`.
      count: number of segments.

    Returns:
      start, end: `[count]` int32.
    """
    number = jnp.arange(1, count + 1)
    share = number * mass[size - 1] / count  # in this order it is exact for equal masses
    end = jnp.searchsorted(mass, share.at[-1].set(jnp.inf)).astype(jnp.int32) + 1
    end = jax.lax.cummax(end - number) + number  # strictly rising
    end = jnp.minimum(end, size - (count - number))
    return jnp.concatenate([jnp.zeros(1, jnp.int32), end[:-1]]), end


def sampler(config: RankConfig = RankConfig(), updates: int | None = None) -> Sampler:
    """Make the rank-based sampler: P(i) = rank(i)^-alpha / sum_r r^-alpha (Schaul et al. 2016).

    Rank 1 has the largest |TD error|. The order is that of the latest sort; transitions that came
    since take the top ranks, newest first, and the list stays as long as the buffer: so many of its
    last fall off until the next sort. With `sort_every` 1 every draw sees the exact order, ties by
    slot. Independent draws resolve the running sum of masses in float32: of a million ranks,
    neighbours far down may share their chances unevenly; segments do not.

    Args:
      config: hyperparameters.
      updates: gradient steps of the run, over which beta moves if the config leaves it open;
        None with an open config keeps beta where it is.
    """
    weigh = config.importance(updates)

    def sample(state: RankState, ring: Ring, key: Array, batch_size: int) -> Draw:
        if config.sampling == "greedy":
            top = _largest(state, ring, batch_size)
            return Draw(top, jnp.ones(batch_size, jnp.float32))
        rank, odds = _draw_rank(config, state, ring, key, batch_size)
        return Draw(_by_rank(config, state, ring, rank), weigh(odds))

    return Sampler(
        functools.partial(_init, config), _add, sample, functools.partial(_update, config),
        probability=functools.partial(_probability, config), metrics=_metrics,
        requires=Requirements(feedback=frozenset({"td_error"})),
    )  # fmt: skip


def method(config: RankConfig = RankConfig(), updates: int | None = None) -> Method:
    """Make rank-based PER: its sampler, and an objective weighted by importance."""
    return Method(sampler(config, updates), config.objective())


def falling(values: Array) -> Array:
    """Return the slots `[C]` int32 by falling value (float32, at least 0, or -1); ties by slot.

    XLA sorts single integers several times faster on CPU than floats together with their indices,
    so each value shares a 64-bit integer with its slot.
    """
    # As integers, floats that are not negative sort as themselves; 2^31 puts -1 behind them.
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    keys = jnp.where(values < 0, jnp.uint32(2**31), ~bits & jnp.uint32(0x7FFFFFFF))
    slots = jnp.arange(values.size, dtype=jnp.uint32)
    with jax.enable_x64(True):  # whatever the caller's setting; nothing of 64 bits gets out
        wide = [jax.lax.convert_element_type(part, jnp.uint64) for part in (keys, slots)]
        ordered = jax.lax.sort((wide[0] << jnp.uint64(32)) | wide[1], is_stable=False)
        return jax.lax.convert_element_type(ordered & jnp.uint64(0xFFFFFFFF), jnp.int32)


def _init(config: RankConfig, key: Array, ring: Ring) -> RankState:
    del key
    ranks = np.arange(1, ring.capacity + 1, dtype=np.float64)
    zero = jnp.zeros((), jnp.int32)
    return RankState(
        abs_td=jnp.zeros(ring.capacity, jnp.float32),
        order=jnp.arange(ring.capacity, dtype=jnp.int32),
        sorted_at=zero,
        mass=jnp.asarray(np.cumsum(ranks**-config.alpha), jnp.float32),
        largest=jnp.ones((), jnp.float32),
        updates=zero,
    )


def _add(
    state: RankState, ring: Ring, slots: Array, transition: Transition, **_: Array
) -> RankState:
    del ring, transition
    values = jnp.broadcast_to(state.largest, slots.shape)
    return state._replace(abs_td=buffer.write(state.abs_td, slots, values))


def _update(
    config: RankConfig,
    state: RankState,
    ring: Ring,
    sample: Sample,
    *,
    td_error: Array,
    **_: Array,
) -> RankState:
    values = jnp.abs(td_error)
    written = jnp.where(sample.indices < ring.capacity, values, 0.0)
    state = state._replace(
        abs_td=buffer.write(state.abs_td, sample.indices, values),
        largest=jnp.maximum(state.largest, written.max()),
        updates=state.updates + 1,
    )
    every = _sort_every(config, ring)
    if every == 1:
        return state

    def sort() -> tuple[Array, Array]:
        return falling(_live_abs_td(state, ring)), ring.rows_added

    order, sorted_at = jax.lax.cond(
        state.updates % every == 0, sort, lambda: (state.order, state.sorted_at)
    )
    return state._replace(order=order, sorted_at=sorted_at)


def _probability(
    config: RankConfig, state: RankState, ring: Ring, slots: Array, batch_size: int
) -> Array:
    nothing = jnp.zeros(ring.capacity)
    if config.sampling == "greedy":
        return nothing.at[_largest(state, ring, batch_size)].set(1.0 / batch_size)[slots]
    size = jnp.maximum(ring_.size(ring), 1)
    ranks = jnp.arange(ring.capacity)
    chances = _by_eq_1(config, state, ranks, size)
    if config.sampling == "segments":
        start, end = segments(state.mass, size, batch_size)
        segment = jnp.searchsorted(end, ranks, side="right")
        width = (end - start)[jnp.minimum(segment, batch_size - 1)]
        chances = jnp.where(size >= batch_size, 1.0 / (batch_size * width), chances)
    # Added up, as a slot that was overwritten since the sort may hold two ranks.
    chances = jnp.where(ranks < size, chances, 0.0)
    return nothing.at[_by_rank(config, state, ring, ranks)].add(chances)[slots]


def _metrics(state: RankState, ring: Ring) -> dict[str, Array]:
    mean = jnp.maximum(_live_abs_td(state, ring), 0.0).sum() / jnp.maximum(ring_.size(ring), 1)
    return {"mean_priority": mean, "max_priority": state.largest}


def _draw_rank(
    config: RankConfig, state: RankState, ring: Ring, key: Array, count: int
) -> tuple[Array, Odds]:
    """Draw ranks `[count]`, counted from 0."""
    even = jax.random.uniform(key, (count,))
    size = jnp.maximum(ring_.size(ring), 1)

    def alone() -> tuple[Array, Array, Array]:
        rank = jnp.searchsorted(state.mass, even * state.mass[size - 1], side="right")
        rank = jnp.minimum(rank.astype(jnp.int32), size - 1)
        return rank, _by_eq_1(config, state, rank, size), _by_eq_1(config, state, size - 1, size)

    def by_segment() -> tuple[Array, Array, Array]:
        start, end = segments(state.mass, size, count)
        width = end - start
        rank = start + jnp.minimum((even * width).astype(jnp.int32), width - 1)
        if config.weights == "effective":
            return rank, 1.0 / (count * width), 1.0 / (count * width.max())
        return rank, _by_eq_1(config, state, rank, size), _by_eq_1(config, state, size - 1, size)

    if config.sampling == "segments":  # if there is a rank for every segment
        rank, chance, least = jax.lax.cond(size >= count, by_segment, alone)
    else:
        rank, chance, least = alone()
    return rank, Odds(chance, least, size, state.updates)


def _by_eq_1(config: RankConfig, state: RankState, rank: Array, size: Array) -> Array:
    return (rank + 1.0) ** -config.alpha / state.mass[size - 1]


def _by_rank(config: RankConfig, state: RankState, ring: Ring, rank: Array) -> Array:
    """Return the slots `[B]` of the ranks `[B]`, counted from 0."""
    if _sort_every(config, ring) == 1:
        return falling(_live_abs_td(state, ring))[rank]
    unsorted = _unsorted(state, ring)
    new = ring_.recent(ring, jnp.minimum(rank, unsorted))
    return jnp.where(rank < unsorted, new, state.order[jnp.maximum(rank - unsorted, 0)])


def _sort_every(config: RankConfig, ring: Ring) -> int:
    return config.sort_every or max(1, ring.capacity // 1000)


def _largest(state: RankState, ring: Ring, count: int) -> Array:
    """Return the slots `[count]` int32 of the largest |TD errors|."""
    return jax.lax.top_k(_live_abs_td(state, ring), count)[1].astype(jnp.int32)


def _live_abs_td(state: RankState, ring: Ring) -> Array:
    """Return |TD error| `[C]`, and -1 for slots that were never written."""
    return jnp.where(jnp.arange(ring.capacity) < ring_.size(ring), state.abs_td, -1.0)


def _unsorted(state: RankState, ring: Ring) -> Array:
    """Return how many stored transitions came after the latest sort."""
    rows = ring.rows_added - state.sorted_at
    return jnp.minimum(rows * ring.num_envs, ring_.size(ring))
