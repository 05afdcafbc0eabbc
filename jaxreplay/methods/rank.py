"""Prioritised experience replay, rank-based variant (Schaul et al. 2016)."""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import ring as ring_
from jaxreplay._internal import bucket_order, counters, numerics, schedules
from jaxreplay._internal.bucket_order import BucketOrder, Ties
from jaxreplay.methods.parts import rank_mass
from jaxreplay.methods.parts.options import ImportanceOptions, WeightedLossOptions
from jaxreplay.methods.parts.rank_mass import Segments
from jaxreplay.methods.proportional import SamplingStats
from jaxreplay.option import check_config_class, option, override
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree

_PAPER = "Schaul et al. 2016"
_QUANTILES = (0.1, 0.5, 0.9)


@dataclasses.dataclass(frozen=True)
class RankConfig(WeightedLossOptions, ImportanceOptions):
    """Hyperparameters of rank-based prioritised replay."""

    alpha: float = option(
        0.7, "prioritisation exponent, 0 is uniform", f"{_PAPER}, Tab. 3", at_least=0
    )
    alpha_end: float | None = option(
        None,
        "final prioritisation exponent, reached linearly; none: alpha throughout",
        f"{_PAPER}, Tab. 3 (.5 to 0, without importance weights)",
        at_least=0,
    )
    alpha_updates: int | None = option(
        None,
        "gradient steps until alpha_end; none: the whole run",
        f"{_PAPER}, Tab. 3",
        at_least=1,
        whole_run=True,
    )
    beta: float = override(ImportanceOptions, "beta", 0.5, f"{_PAPER}, Tab. 3")
    order: Literal["buckets", "sorted"] = option(
        "buckets",
        "ranks at every draw: |TD errors| within 7 to 12.5 % are ties (more below 3e-5 and above"
        " 8192); or the exact order, which takes a sort of the whole buffer",
        f"in place of the heap of {_PAPER}, App. B.2.1",
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

    @property
    def exponent(self) -> Callable[[Array], Array | float]:
        """The schedule of alpha over calls of update; constant without an end or a horizon."""
        if self.alpha_end is None or self.alpha_updates is None:
            return lambda updates: self.alpha
        schedule = schedules.linear(self.alpha, self.alpha_end, self.alpha_updates)
        return lambda updates: jnp.asarray(schedule(updates), jnp.float32)


class RankState(NamedTuple):
    """What was last seen of every slot."""

    order: BucketOrder  # by |TD error| [C] when last replayed; never replayed: the largest so far
    largest: Array  # [] float32, the largest |TD error| so far, initially 1
    updates: Array  # [] int32, a clock: calls of update


@dataclasses.dataclass(frozen=True)
class Rank(Sampler):
    """Samples with `P(i) = rank(i)^-alpha / sum_r r^-alpha` (Schaul et al. 2016, Sec. 3.3).

    Rank 1 has the largest |TD error|. Every draw uses the order of the current |TD errors|. By
    default nearly equal ones are ties (`bucket_order`): all of them have the mean probability of
    the ranks that they share, and importance weights are those of this mean. With `order="sorted"`
    the order is exact, ties by slot.

    Independent draws resolve the running sum of probabilities in float32: of a million ranks,
    neighbours far down may have uneven probabilities; segments do not.
    """

    config: RankConfig = RankConfig()

    @property
    def requires(self) -> Requirements:
        """TD errors."""
        return Requirements(feedback=frozenset({"td_error"}))

    def init(self, key: Array, ring: Ring) -> RankState:
        return RankState(
            order=bucket_order.init(ring.capacity),
            largest=jnp.ones((), jnp.float32),
            updates=jnp.zeros((), jnp.int32),
        )

    def add(
        self, state: RankState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> RankState:
        values = jnp.broadcast_to(state.largest, slots.shape)
        return state._replace(order=bucket_order.set(state.order, slots, values))

    def sample(self, state: RankState, ring: Ring, key: Array, batch_size: int) -> Draw:
        if self.config.sampling == "greedy":
            ones = jnp.ones(batch_size, jnp.float32)
            return Draw(_largest(state, batch_size), ones, probability=ones / batch_size)
        slots, stats, chance = _draw(_Rule(self.config), state, ring, key, batch_size)
        return Draw(slots, self.config.weight(stats), probability=chance)

    def update(self, state: RankState, ring: Ring, sample: Sample, **feedback: Array) -> RankState:
        values = jnp.abs(feedback["td_error"])
        written = jnp.where(sample.indices != IGNORED, values, 0.0)
        return RankState(
            order=bucket_order.set(state.order, sample.indices, values),
            largest=jnp.maximum(state.largest, written.max()),
            updates=counters.increment(state.updates),
        )

    def probability(self, state: RankState, ring: Ring, slots: Array, batch_size: int) -> Array:
        rule = _Rule(self.config)
        live = slots < ring_.size(ring)
        if rule.config.sampling == "greedy":
            chance = jnp.zeros(ring.capacity, jnp.float32)
            chance = chance.at[_largest(state, batch_size)].add(1.0 / batch_size)
            return jnp.where(live, chance[slots], 0.0)
        if rule.config.order == "sorted":
            order = falling(bucket_order.values(state.order))
            ranks = jnp.arange(ring.capacity, dtype=jnp.int32)
            rank = jnp.zeros_like(ranks).at[order].set(ranks)[slots]
            ties = Ties(rank, rank + 1)
        else:
            held = jnp.maximum(bucket_order.values(state.order)[slots], 0.0)
            bucket = bucket_order.bucket_of(held)
            ties = Ties(*(ranks[bucket] for ranks in bucket_order.ties(state.order)))
        segments = rule.segments(state, ring, batch_size)
        return jnp.where(live, rule.chance(state, ring, ties, segments), 0.0)

    def metrics(self, state: RankState, ring: Ring) -> dict[str, Array]:
        size = jnp.maximum(ring_.size(ring), 1)
        mean = jnp.maximum(bucket_order.values(state.order), 0.0).sum() / size
        found = bucket_order.quantiles(state.order, jnp.asarray(_QUANTILES))
        quantiles = {
            f"priority_p{round(100 * q)}": x for q, x in zip(_QUANTILES, found, strict=True)
        }
        alpha = jnp.asarray(self.config.exponent(state.updates), jnp.float32)
        return {
            "mean_priority": mean,
            "max_priority": state.largest,
            **quantiles,
            "alpha": alpha,
            "beta": self.config.weight.exponent(state.updates),
        }


@check_config_class
def sampler(config: RankConfig = RankConfig()) -> Rank:
    """Return the rank-based sampler.

    Alpha and beta are constant, unless `alpha_updates` and `beta_updates`, or `config.for_run`,
    give their schedules an end.
    """
    return Rank(config)


@check_config_class
def method(config: RankConfig = RankConfig()) -> Method:
    """Return rank-based PER: its sampler, and an objective weighted by importance."""
    return Method(sampler(config), config.objective())


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


def check_valid(state: RankState, ring: Ring) -> None:
    """Check a concrete state against its ring.

    Raises:
      ValueError: the order is inconsistent, a stored transition has no |TD error| or a slot that
        was never written has one, or one exceeds the largest so far.
    """
    bucket_order.check_valid(state.order)
    known = bucket_order.values(state.order) >= 0
    if (known != (jnp.arange(ring.capacity) < ring_.size(ring))).any():
        raise ValueError("other slots than the stored ones have a |TD error|")
    if state.order.values.max() > state.largest:
        raise ValueError(f"a |TD error| exceeds the largest so far, {state.largest}")


class _Rule(NamedTuple):
    """How likely ranks are."""

    config: RankConfig

    @property
    def exponent(self) -> Callable[[Array], Array | float]:
        return self.config.exponent

    def by_eq_1(self, state: RankState, ring: Ring, ties: Ties) -> Array:
        """Return the probability by Eq. 1 of each of ties."""
        alpha, size = self.exponent(state.updates), jnp.maximum(ring_.size(ring), 1)
        count = jnp.maximum(ties.last - ties.first, 1)
        return rank_mass.mass(*ties, alpha) / (count * rank_mass.mass(0, size, alpha))

    def segments(self, state: RankState, ring: Ring, count: int) -> Segments:
        """Return the ranks that each of `count` draws chooses from, if there are so many."""
        size = jnp.maximum(ring_.size(ring), count)
        return rank_mass.segments(size, count, self.exponent(state.updates))

    def chance(self, state: RankState, ring: Ring, ties: Ties, segments: Segments) -> Array:
        """Return with which probability a draw really is each of ties."""
        if self.config.sampling == "iid":
            return self.by_eq_1(state, ring, ties)
        batch_size = len(segments.end)
        count = jnp.maximum(ties.last - ties.first, 1)
        share = rank_mass.share_of_segments(segments, *ties) / (batch_size * count)
        return jnp.where(ring_.size(ring) >= batch_size, share, self.by_eq_1(state, ring, ties))


def _draw(
    rule: _Rule, state: RankState, ring: Ring, key: Array, count: int
) -> tuple[Array, SamplingStats, Array]:
    """Draw slots `[count]`; return also what weights are made of, and each draw's probability."""
    config, size = rule.config, jnp.maximum(ring_.size(ring), 1)
    # With one turn for all ties, equal ranks are the same slot: independent draws take one each.
    turns = count if (config.order, config.sampling) == ("buckets", "iid") else 1
    bits = numerics.bits(key, (count + turns,))
    rank, segments = _draw_rank(rule, state, ring, bits[:count])
    if config.order == "sorted":
        slots, ties = falling(bucket_order.values(state.order))[rank], Ties(rank, rank + 1)
    else:
        turn = bits[count:] if turns > 1 else bits[count]
        slots, ties = bucket_order.find(state.order, rank, turn)

    def in_weights(ties: Ties) -> Array:
        if config.weights == "effective":
            return rule.chance(state, ring, ties, segments)
        return rule.by_eq_1(state, ring, ties)

    smallest = None
    if config.normalise == "buffer":
        every = _all_ties(config, state, ring)
        smallest = jnp.where(every.first < every.last, in_weights(every), jnp.inf).min()
    stats = SamplingStats(in_weights(ties), smallest, size, state.updates)
    return slots, stats, rule.chance(state, ring, ties, segments)


def _draw_rank(rule: _Rule, state: RankState, ring: Ring, bits: Array) -> tuple[Array, Segments]:
    """Turn random bits `[B]` uint32 into ranks `[B]` int32, counted from 0.

    The segments that they are of come along; they are meaningless where draws are independent.
    """
    count, size = len(bits), jnp.maximum(ring_.size(ring), 1)
    share = (bits >> 8) * jnp.float32(2.0**-24)
    segmented = (rule.config.sampling == "segments") & (size >= count)  # a rank for every segment
    share = jnp.where(segmented, jnp.arange(1, count + 1) / count, share)
    end = rank_mass.reaches(share, size, rule.exponent(state.updates))
    segments = rank_mass.spread(end, size)
    if rule.config.sampling == "iid":
        return end - 1, segments
    wide = (segments.end - segments.start).astype(jnp.uint32)
    inside = numerics.scaled(bits, wide).astype(jnp.int32)
    return jnp.where(segmented, segments.start + inside, end - 1), segments


def _all_ties(config: RankConfig, state: RankState, ring: Ring) -> Ties:
    if config.order == "buckets":
        return bucket_order.ties(state.order)
    rank = jnp.arange(ring.capacity, dtype=jnp.int32)
    return Ties(rank, rank + (rank < ring_.size(ring)))


def _largest(state: RankState, count: int) -> Array:
    """Return the slots `[count]` int32 of the largest |TD errors|.

    Where fewer are stored, the largest stands for what is missing.
    """
    values, slots = jax.lax.top_k(bucket_order.values(state.order), count)
    return jnp.where(values >= 0, slots, slots[0]).astype(jnp.int32)
