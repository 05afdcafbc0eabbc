"""Experience replay with random reshuffling, RR-C (Fujita 2025): uniform, without replacement.

An epoch draws every stored transition once, in random order; then the next epoch begins.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import buffer, numerics, objectives
from jaxreplay import ring as ring_
from jaxreplay.buffer import Buffer
from jaxreplay.loops import varying
from jaxreplay.methods import options
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import Array, Draw, Requirements, Sample


@dataclasses.dataclass(frozen=True)
class ReshuffledConfig(Config):
    """Hyperparameters of RR-C."""

    loss: LossName = option("agent", options.LOSS)


class ReshuffledState(NamedTuple):
    """A permutation of the slots, of which the current epoch has drawn the first `drawn`."""

    order: Buffer  # [R, 128] int32 (`buffer.in_rows`), a permutation of the slots; empty slots are
    # at their own positions
    drawn: Array  # [] int32, number of slots that the current epoch has drawn


class Aux(NamedTuple):
    """Positions of a batch's slots in the permutation.

    `update` moves the slots to the front of the permutation.
    """

    places: Array  # [B] int32, positions in `ReshuffledState.order`
    start: Array  # [] int32, number of slots that the batch's latest epoch had drawn before
    rows: Array  # [] int32, number of rows that the latest epoch draws: the first in `places`


@dataclasses.dataclass(frozen=True)
class Reshuffled(Sampler):
    """Samples uniformly without replacement, in epochs over the buffer, with weights of 1.

    The permutation is shuffled as it is drawn (Fisher-Yates): a batch consists of B random slots
    that the epoch has not drawn yet, and `update` moves them to the front of the permutation.
    `update` must be called once for each batch, before the next batch is sampled. A slot that is
    overwritten keeps its position, and a slot that is written for the first time is drawn in the
    current epoch. A batch may contain the end of one epoch and the beginning of the next; only such
    a batch can repeat a transition. While fewer than B transitions are stored, draws are
    independent and belong to no epoch.
    """

    config: ReshuffledConfig = ReshuffledConfig()

    @property
    def requires(self) -> Requirements:
        return Requirements()

    @property
    def is_uniform(self) -> bool:
        return True

    def init(self, key: Array, ring: Ring) -> ReshuffledState:
        order = jnp.arange(ring.capacity, dtype=jnp.int32)
        return ReshuffledState(buffer.in_rows(order), jnp.zeros((), jnp.int32))

    def sample(self, state: ReshuffledState, ring: Ring, key: Array, batch_size: int) -> Draw:
        size = jnp.maximum(ring_.size(ring), 1)
        left = jnp.where(size < batch_size, 0, size - state.drawn)
        start = jnp.where(left < batch_size, 0, state.drawn)
        count = jnp.where(left < batch_size, batch_size - left, batch_size)
        random = distinct(key, batch_size, count, size - start)
        number = jnp.arange(batch_size, dtype=jnp.int32)
        places = jnp.where(number < count, start + random, state.drawn + number - count)
        slots = buffer.read_elements(state.order, buffer.once(places))
        # An epoch does not begin before the buffer contains a batch.
        count = jnp.where(size < batch_size, 0, count)
        return Draw(slots, jnp.ones(batch_size, jnp.float32), Aux(places, start, count))

    def update(
        self, state: ReshuffledState, ring: Ring, sample: Sample, **feedback: Array
    ) -> ReshuffledState:
        places, start, count = sample.aux
        # Make the write follow the read in `sample`, of which `aux` is independent.
        places = buffer.after(sample.indices, places)
        number = jnp.arange(len(places), dtype=jnp.int32)
        drawn, none = number < count, jnp.int32(ring.capacity)
        at_front = jnp.where(drawn, places - start, len(places))
        stays = jnp.zeros(len(places), bool).at[at_front].set(True, mode="drop") | ~drawn
        # The i-th slot that leaves the front takes the place of the i-th that comes from behind.
        leaves = jnp.cumsum(~stays, dtype=jnp.int32) - 1
        leaving = jnp.zeros_like(number)
        leaving = leaving.at[jnp.where(stays, len(places), leaves)].set(number, mode="drop")
        behind = drawn & (at_front >= count)
        came = jnp.maximum(jnp.cumsum(behind, dtype=jnp.int32) - 1, 0)
        front = jnp.where(drawn, start + number, 0)
        moved = buffer.read_elements(state.order, jnp.concatenate([places, front]))
        slots, before = moved[: len(places)], moved[len(places) :]
        targets = [jnp.where(drawn, front, none), jnp.where(behind, places, none)]
        values = [slots, before[leaving[came]]]
        order = buffer.write_elements(
            state.order, jnp.concatenate(targets), jnp.concatenate(values)
        )
        return ReshuffledState(order, jnp.where(count > 0, start + count, state.drawn))

    def probability(
        self, state: ReshuffledState, ring: Ring, slots: Array, batch_size: int
    ) -> Array:
        size = jnp.maximum(ring_.size(ring), 1)
        left = jnp.where(size < batch_size, 0, size - state.drawn)
        places = jnp.arange(ring.capacity, dtype=jnp.int32)
        order = buffer.of_slots(state.order, ring.capacity)
        waits = jnp.zeros(ring.capacity, bool).at[order].set(places >= state.drawn)[slots]
        now = jnp.minimum(left, batch_size)  # rows that the current epoch fills
        share = jnp.where(waits, now / jnp.maximum(left, 1), 0.0)
        chance = (share + (batch_size - now) / size) / batch_size
        return jnp.where(slots < ring_.size(ring), chance, 0.0).astype(jnp.float32)

    def metrics(self, state: ReshuffledState, ring: Ring) -> dict[str, Array]:
        size = jnp.maximum(ring_.size(ring), 1).astype(jnp.float32)
        return {"epoch_share": state.drawn.astype(jnp.float32) / size}


sampler = Reshuffled


def method(config: ReshuffledConfig = ReshuffledConfig()) -> Method:
    """Return RR-C: the sampler, and an objective that averages losses.

    Args:
      config: options; `loss` replaces the agent's own loss on the TD error.
    """
    return Method(sampler(config), objectives.plain(objectives.named(config.loss)))


def distinct(key: Array, batch_size: int, count: Array, below: Array) -> Array:
    """Return integers `[batch_size]` int32 whose first `count` entries are drawn at random.

    The entries are drawn uniformly from [0, `below`), without repetition unless `below` is less
    than `count`. The entries after the first `count` have no meaning.

    Args:
      key: PRNG key.
      batch_size: B.
      count: `[]` int32, at most B.
      below: `[]` int32, positive.
    """
    few = (count <= below) & (below <= 2 * batch_size)
    # Under vmap both branches run: without integers to draw, the second one's loop does not repeat.
    return jax.lax.cond(
        few,
        lambda key, number: _by_sorting(key, number, count, below),
        lambda key, number: _by_repeating(key, number, jnp.where(few, 0, count), below),
        key,
        jnp.arange(batch_size, dtype=jnp.int32),
    )


def _by_sorting(key: Array, number: Array, count: Array, below: Array) -> Array:
    """Return the first integers `[B]` of a permutation of at most 2B integers."""
    candidates = jnp.arange(2 * len(number), dtype=jnp.int32)
    order = jnp.where(
        candidates < below, numerics.bits(key, candidates.shape) >> 1, jnp.uint32(2**31)
    )
    return varying(jnp.argsort(order)[: len(number)].astype(jnp.int32))


def _by_repeating(key: Array, number: Array, count: Array, below: Array) -> Array:
    """Draw `[B]` integers independently, and draw duplicates again until there are none."""

    def duplicates(values: Array) -> Array:  # `values` in ascending order
        same = jnp.concatenate([jnp.zeros(1, bool), values[1:] == values[:-1]])
        return same & (count <= below)

    def again(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        turn, values = carry
        fresh = numerics.integers(jax.random.fold_in(key, turn), number.shape, below)
        return turn + 1, jnp.sort(jnp.where(duplicates(values), fresh, values))

    values = numerics.integers(key, number.shape, below)
    values = jnp.sort(jnp.where(number < count, values, below + number))  # others are last
    carry = varying((jnp.zeros((), jnp.int32), values))
    return jax.lax.while_loop(lambda carry: duplicates(carry[1]).any(), again, carry)[1]
