"""Prioritised experience replay, rank-based variant (Schaul et al. 2016)."""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import counters, numerics, objectives, schedules, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.methods import options
from jaxreplay.methods.parts import bucket_order, rank_mass
from jaxreplay.methods.parts.bucket_order import BucketOrder, Ties
from jaxreplay.methods.parts.rank_mass import Segments
from jaxreplay.methods.proportional import ImportanceWeights, importance_weights
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import SumTree
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree

_PAPER = "Schaul et al. 2016"


@dataclasses.dataclass(frozen=True)
class RankConfig(Config):
    """Hyperparameters of rank-based prioritised replay."""

    alpha: float = option(0.7, options.ALPHA)
    alpha_end: float | None = option(
        None,
        "final prioritisation exponent of the linear schedule; none: alpha is constant",
        f"{_PAPER}, Tab. 3 (0.5 to 0, without importance weights)",
        at_least=0,
    )
    alpha_updates: int | None = option(
        None,
        "gradient steps over which alpha reaches alpha_end; none: the whole run",
        f"{_PAPER}, Tab. 3",
        at_least=1,
        whole_run=True,
    )
    order: Literal["buckets", "sorted"] = option(
        "buckets",
        "ranking of |TD errors|: approximate, in buckets of 7 to 12.5 % width (wider below 3e-5 "
        "and above 8192) with ties within a bucket; or exact, by sorting the whole buffer for "
        "every batch",
        f"replaces the heap in {_PAPER}, App. B.2.1",
    )
    weights: Literal["rank", "effective"] = option(
        "rank",
        "P(i) in importance weights: the probability of the rank by Eq. 1 (rank), or the "
        "probability with which draws from segments yield the rank (effective)",
        f"{_PAPER}, Sec. 3.4",
    )
    maximum: options.Maximum = option("all_time", options.MAXIMUM)
    sampling: Literal["segments", "iid", "greedy"] = option(
        "segments",
        "one draw from each of B segments of nearly equal probability, independent draws, or the B "
        "largest |TD errors|",
        f"{_PAPER}, Sec. 3.3 and Fig. 2",
    )
    beta: float = option(0.5, options.BETA, f"{_PAPER}, Tab. 3")
    beta_end: float = option(1.0, options.BETA_END)
    beta_updates: int | None = option(None, options.BETA_UPDATES)
    normalise: options.Normalisation = option("batch", options.NORMALISE)
    loss: LossName = option("agent", options.LOSS)
    weigh_actor: bool = option(False, options.WEIGH_ACTOR)

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights; their exponent beta is constant if `beta_updates` is None."""
        return importance_weights(self)

    @property
    def exponent(self) -> Callable[[Array], Array | float]:
        """Schedule of alpha over updates; constant if `alpha_end` or `alpha_updates` is None."""
        if self.alpha_end is None or self.alpha_updates is None:
            return lambda updates: self.alpha
        schedule = schedules.linear(self.alpha, self.alpha_end, self.alpha_updates)
        return lambda updates: jnp.asarray(schedule(updates), jnp.float32)


class RankState(NamedTuple):
    """The latest |TD error| of each slot, and the running maximum of |TD errors|."""

    order: BucketOrder  # bucket order of the slots [C] by |TD error|; `_maximum` if new
    largest: Array  # [] float32, running maximum of |TD error|, initially 1
    updates: Array  # [] int32, number of calls to `update`
    maximum: SumTree | None = None  # max tree over |TD errors| [C]; None if not tracked


@dataclasses.dataclass(frozen=True)
class Rank(Sampler):
    """Samples with `P(i) = rank(i)^-alpha / sum_r r^-alpha` (Schaul et al. 2016, Sec. 3.3).

    The largest |TD error| has rank 1, and every batch uses the current ranks. By default, nearly
    equal |TD errors| are tied: sampling and importance weights use the mean probability of the tied
    ranks for all tied transitions. With `order="sorted"`, ranks are exact, and ties are broken in
    slot order.

    Independent draws invert the cumulative distribution function of ranks in float32. With a
    million ranks, rounding makes the probabilities of the last ranks uneven; one draw from each
    segment avoids this error.

    Alpha and beta are constant unless `alpha_updates` and `beta_updates`, or `config.for_run`, set
    the lengths of their schedules.
    """

    needs_whole = "it ranks all transitions together"

    config: RankConfig = RankConfig()

    @property
    def requires(self) -> Requirements:
        return Requirements(feedback=frozenset({"td_error"}))

    def init(self, key: Array, ring: Ring) -> RankState:
        stored = self.config.maximum == "stored"
        return RankState(
            order=bucket_order.init(ring.capacity),
            largest=jnp.ones((), jnp.float32),
            updates=jnp.zeros((), jnp.int32),
            maximum=sum_tree.init(ring.capacity, reduce="max") if stored else None,
        )

    def add(
        self, state: RankState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> RankState:
        if state.maximum is not None:  # overwritten transitions do not count
            none = jnp.zeros(slots.shape, jnp.float32)
            state = state._replace(maximum=sum_tree.set(state.maximum, slots, none))
        values = jnp.broadcast_to(_maximum(state), slots.shape)
        return _set(state, slots, values)

    def sample(self, state: RankState, ring: Ring, key: Array, batch_size: int) -> Draw:
        if self.config.sampling == "greedy":
            ones = jnp.ones(batch_size, jnp.float32)
            return Draw(_largest(state, batch_size), ones, probability=ones / batch_size)
        slots, weights, chance = self._draw(state, ring, key, batch_size)
        return Draw(slots, weights, probability=chance)

    def update(self, state: RankState, ring: Ring, sample: Sample, **feedback: Array) -> RankState:
        values = jnp.abs(feedback["td_error"])
        written = jnp.where(sample.indices != IGNORED, values, 0.0)
        return _set(state, sample.indices, values)._replace(
            largest=jnp.maximum(state.largest, written.max()),
            updates=counters.increment(state.updates),
        )

    def refresh(self, state: RankState, ring: Ring, slots: Array, **feedback: Array) -> RankState:
        state = _set(state, slots, jnp.abs(feedback["td_error"]))
        largest = bucket_order.values(state.order).max()
        return state._replace(largest=jnp.where(largest > 0, largest, 1.0))

    def probability(self, state: RankState, ring: Ring, slots: Array, batch_size: int) -> Array:
        live = slots < ring_.size(ring)
        if self.config.sampling == "greedy":
            chance = jnp.zeros(ring.capacity, jnp.float32)
            chance = chance.at[_largest(state, batch_size)].add(1.0 / batch_size)
            return jnp.where(live, chance[slots], 0.0)
        if self.config.order == "sorted":
            order = argsort_descending(bucket_order.values(state.order))
            ranks = jnp.arange(ring.capacity, dtype=jnp.int32)
            rank = jnp.zeros_like(ranks).at[order].set(ranks)[slots]
            ties = Ties(rank, rank + 1)
        else:
            values = jnp.maximum(bucket_order.values(state.order)[slots], 0.0)
            bucket = bucket_order.bucket_of(values)
            ties = Ties(*(ranks[bucket] for ranks in bucket_order.ties(state.order)))
        # Until B transitions are stored, segments are unused, but each must contain a rank.
        size, alpha = jnp.maximum(ring_.size(ring), batch_size), self.config.exponent(state.updates)
        segments = rank_mass.segments(size, batch_size, alpha)
        return jnp.where(live, self._chance(state, ring, ties, segments), 0.0)

    def metrics(self, state: RankState, ring: Ring) -> dict[str, Array]:
        size = jnp.maximum(ring_.size(ring), 1)
        mean = jnp.maximum(bucket_order.values(state.order), 0.0).sum() / size
        quantiles = bucket_order.quantiles(state.order, jnp.asarray([0.1, 0.5, 0.9]))
        return {
            "mean_priority": mean,
            "max_priority": _maximum(state),
            **{f"priority_p{q}": x for q, x in zip((10, 50, 90), quantiles, strict=True)},
            "alpha": jnp.asarray(self.config.exponent(state.updates), jnp.float32),
            "beta": self.config.weight.exponent(state.updates),
        }

    def _draw(
        self, state: RankState, ring: Ring, key: Array, count: int
    ) -> tuple[Array, Array, Array]:
        """Return sampled slots, importance weights and probabilities, `[count]` each."""
        config, size = self.config, jnp.maximum(ring_.size(ring), 1)
        # A random rotation maps tied ranks to slots. Independent draws may repeat a rank, so each
        # of the B draws has its own rotation.
        turns = count if (config.order, config.sampling) == ("buckets", "iid") else 1
        bits = numerics.bits(key, (count + turns,))
        rank, segments = self._draw_rank(state, ring, bits[:count])
        if config.order == "sorted":
            slots = argsort_descending(bucket_order.values(state.order))[rank]
            ties = Ties(rank, rank + 1)
        else:
            turn = bits[count:] if turns > 1 else bits[count]
            slots, ties = bucket_order.find(state.order, rank, turn)

        def in_weights(ties: Ties) -> Array:
            if config.weights == "effective":
                return self._chance(state, ring, ties, segments)
            return self._rank_probability(state, ring, ties)

        smallest = None
        if config.normalise == "buffer":
            buckets = _all_ties(config, state, ring)
            smallest = jnp.where(buckets.first < buckets.last, in_weights(buckets), jnp.inf).min()
        weights = config.weight(in_weights(ties), size, state.updates, smallest)
        return slots, weights, self._chance(state, ring, ties, segments)

    def _draw_rank(self, state: RankState, ring: Ring, bits: Array) -> tuple[Array, Segments]:
        """Return zero-based ranks `[B]` int32 for random bits `[B]` uint32, and B rank segments.

        Callers ignore the segments if draws are independent.
        """
        count, size = len(bits), jnp.maximum(ring_.size(ring), 1)
        share = (bits >> 8) * jnp.float32(2.0**-24)
        segmented = (self.config.sampling == "segments") & (size >= count)  # no segment is empty
        share = jnp.where(segmented, jnp.arange(1, count + 1) / count, share)
        end = rank_mass.quantile(share, size, self.config.exponent(state.updates))
        segments = rank_mass.segments_from_ends(end, size)
        if self.config.sampling == "iid":
            return end - 1, segments
        width = (segments.end - segments.start).astype(jnp.uint32)
        inside = numerics.multiply_high(bits, width).astype(jnp.int32)
        return jnp.where(segmented, segments.start + inside, end - 1), segments

    def _rank_probability(self, state: RankState, ring: Ring, ties: Ties) -> Array:
        """Return the mean probability of tied ranks (Schaul et al. 2016, Eq. 1)."""
        alpha = self.config.exponent(state.updates)
        size = jnp.maximum(ring_.size(ring), 1)
        count = jnp.maximum(ties.last - ties.first, 1)
        return rank_mass.mass(*ties, alpha) / (count * rank_mass.mass(0, size, alpha))

    def _chance(self, state: RankState, ring: Ring, ties: Ties, segments: Segments) -> Array:
        """Return the mean probability with which the option `sampling` draws tied ranks."""
        if self.config.sampling == "iid":
            return self._rank_probability(state, ring, ties)
        batch_size = len(segments.end)
        count = jnp.maximum(ties.last - ties.first, 1)
        share = rank_mass.share_of_segments(segments, *ties) / (batch_size * count)
        by_rank = self._rank_probability(state, ring, ties)
        return jnp.where(ring_.size(ring) >= batch_size, share, by_rank)


sampler = Rank


def method(config: RankConfig = RankConfig()) -> Method:
    """Return rank-based PER: the sampler and an objective.

    The objective averages importance-weighted critic losses.

    Args:
      config: options; `config.for_run(updates)` anneals beta, and alpha if `alpha_end` is set,
        over `updates` gradient steps.
    """
    return Method(
        sampler(config), objectives.weighted(objectives.named(config.loss), config.weigh_actor)
    )


def argsort_descending(values: Array) -> Array:
    """Return the slots `[C]` int32 in descending order of values `[C]`, with ties in slot order.

    Values are float32 of at least 0, or -1 for empty slots. Each value is packed with its slot into
    a 64-bit integer, because XLA on CPU sorts these several times faster than pairs of floats and
    indices.
    """
    # The bit patterns of non-negative floats sort like the floats; the key 2^31 puts -1 last.
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    keys = jnp.where(values < 0, jnp.uint32(2**31), ~bits & jnp.uint32(0x7FFFFFFF))
    slots = jnp.arange(values.size, dtype=jnp.uint32)
    with jax.enable_x64(True):  # only for the 64-bit integers in this function
        wide = [jax.lax.convert_element_type(part, jnp.uint64) for part in (keys, slots)]
        ordered = jax.lax.sort((wide[0] << jnp.uint64(32)) | wide[1], is_stable=False)
        return jax.lax.convert_element_type(ordered & jnp.uint64(0xFFFFFFFF), jnp.int32)


def check_valid(state: RankState, ring: Ring) -> None:
    """Check outside jit that a state is consistent with its ring buffer.

    Raises:
      ValueError: If the bucket order is inconsistent, a stored transition has no |TD error|, an
        empty slot has a |TD error|, or a |TD error| exceeds `state.largest`.
    """
    bucket_order.check_valid(state.order)
    if state.maximum is not None:
        sum_tree.check_valid(state.maximum)
    has_error = bucket_order.values(state.order) >= 0
    if (has_error != (jnp.arange(ring.capacity) < ring_.size(ring))).any():
        raise ValueError("the slots with a |TD error| must be the slots with a stored transition")
    if state.order.values.max() > state.largest:
        raise ValueError(f"|TD errors| must not exceed the running maximum {state.largest}")


def _set(state: RankState, slots: Array, values: Array) -> RankState:
    maximum = state.maximum
    if maximum is not None:
        maximum = sum_tree.set(maximum, slots, values)
    return state._replace(order=bucket_order.set(state.order, slots, values), maximum=maximum)


def _maximum(state: RankState) -> Array:
    """Return the |TD error| `[]` that new transitions receive."""
    if state.maximum is None:
        return state.largest
    stored = sum_tree.total(state.maximum)
    return jnp.where(stored > 0, stored, 1.0)


def _all_ties(config: RankConfig, state: RankState, ring: Ring) -> Ties:
    if config.order == "buckets":
        return bucket_order.ties(state.order)
    rank = jnp.arange(ring.capacity, dtype=jnp.int32)
    return Ties(rank, rank + (rank < ring_.size(ring)))


def _largest(state: RankState, count: int) -> Array:
    """Return the slots `[count]` int32 of the largest |TD errors|.

    If fewer than `count` transitions are stored, the slot with the largest |TD error| is repeated.
    """
    values, slots = jax.lax.top_k(bucket_order.values(state.order), count)
    return jnp.where(values >= 0, slots, slots[0]).astype(jnp.int32)
