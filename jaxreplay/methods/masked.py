"""Prioritised replay with random reshuffling, RR-M (Fujita 2025): a mask on priorities.

A transition that was drawn more often than its priority has called for is masked until its expected
count catches up. Counts then differ from their expectations by about one instead of by the square
root of the count.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxreplay import ring as ring_
from jaxreplay import sum_tree
from jaxreplay._internal import buffer, counters
from jaxreplay._internal.branches import cond_on_schedule
from jaxreplay._internal.buffer import Buffer
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.methods import lap, proportional
from jaxreplay.methods.lap import LAPConfig
from jaxreplay.methods.parts import two_trees
from jaxreplay.methods.proportional import Proportional, SamplingStats
from jaxreplay.option import check_config_class, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import Sampling, SumTree
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree

_PAPER = "Fujita 2025"

DISCRETE: Mapping[str, Any] = lap.DISCRETE  # defaults for discrete actions
_TOLERANCE = 1e-3  # excess of a count that is rounding, in draws


@dataclasses.dataclass(frozen=True)
class MaskedConfig(LAPConfig):
    """Hyperparameters of RR-M over LAP; `combine` masks other methods.

    With stratified draws, a batch may repeat a few transitions, which count. Systematic draws
    repeat a transition only if its priority calls for more than one draw per batch, but with nearly
    equal priorities, they divide the buffer into nearly the same batches in every epoch.
    """

    release_every: int | None = option(
        None,
        "updates between searches of the buffer for transitions to unmask; none: 1/64 of an epoch",
        f"{_PAPER}: 1",
        at_least=1,
    )


class MaskedState(NamedTuple):
    """Priorities, divided into those of transitions that may be drawn and of masked ones.

    `progress` is the sum over updates of B / (sum of the priorities), so that transition i is
    expected to be drawn `priority_i * change` times while `progress` changes.
    """

    open: SumTree  # leaves [C], priorities of transitions that may be drawn, otherwise 0
    masked: SumTree  # leaves [C], priorities of masked transitions, otherwise 0
    due: Buffer  # [C] float32, `progress` at which the expected count equals the actual count
    progress: Array  # [] float32, since the latest release
    available: Array  # [] int32, number of transitions that may be drawn
    max_leaf: Array  # [] float32, running maximum of the priorities, initially 1
    updates: Array  # [] int32, number of calls to `update`
    skipped: Array  # [] int32, number of negative, NaN or infinite priorities that were skipped


@dataclasses.dataclass(frozen=True)
class Masked(Sampler):
    """Samples like a proportional sampler, but draws no transition that is ahead of its priority.

    After every update, the expected count of each transition grows by `B P(i)`, where P is the
    probability of the proportional sampler, and a transition whose actual count exceeds it is
    masked. If fewer than B transitions are left, the rest of the batch consists of masked ones, in
    proportion to their priorities. With equal priorities and systematic draws, epochs draw every
    transition once.

    The search for transitions whose expectation has caught up reads the whole buffer. It takes
    place every `release_every` updates. `update` must be called once for each batch. New
    transitions start with counts of 0.

    Args:
      base: sampler with the priorities and importance weights, such as `lap.sampler()`. Weights
        are computed from the probabilities without the mask.
      sampling: dependence between the draws in a batch; see `sum_tree.sample`.
      release_every: updates between searches; None means 1/64 of an epoch, C / (64 B).

    Raises:
      ValueError: If the base is not a `Proportional`, or tracks the smallest probability or the
        largest stored priority.
    """

    base: Proportional = lap.sampler()
    sampling: Sampling = "stratified"
    release_every: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.base, Proportional):
            raise ValueError(
                f"base must be a Proportional such as lap.sampler(), got {type(self.base).__name__}"
            )
        if self.base.tracks_minimum:
            raise ValueError('base must not use normalise="buffer": use "batch" or "none"')
        if self.base.maximum != "all_time":
            raise ValueError('base must use maximum="all_time", got "stored"')

    @property
    def requires(self) -> Requirements:
        return self.base.requires

    def init(self, key: Array, ring: Ring) -> MaskedState:
        zero, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        return MaskedState(
            open=sum_tree.init(ring.capacity),
            masked=sum_tree.init(ring.capacity),
            due=jnp.zeros(ring.capacity, jnp.float32),
            progress=zero,
            available=count,
            max_leaf=jnp.ones((), jnp.float32),
            updates=count,
            skipped=count,
        )

    @with_default_promotion
    def add(
        self, state: MaskedState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> MaskedState:
        values = jnp.broadcast_to(state.max_leaf, slots.shape)
        invalid, largest = jnp.zeros((), jnp.int32), state.max_leaf
        if self.base.initial == "td":
            found = self.base.leaf(feedback, slots, ring)
            values = jnp.where((found >= 0) & (found < jnp.inf), found, values)
            invalid, largest = proportional.count_invalid_and_max(slots < ring.capacity, found)
        before = buffer.once(sum_tree.get(state.open, slots))
        values = buffer.after(buffer.fence(before), values)
        return state._replace(
            open=sum_tree.set(state.open, slots, values),
            masked=sum_tree.set(state.masked, slots, jnp.zeros_like(values)),
            due=buffer.write(state.due, slots, jnp.broadcast_to(state.progress, slots.shape)),
            available=state.available + (before == 0).sum(dtype=jnp.int32),
            max_leaf=jnp.maximum(state.max_leaf, largest),
            skipped=counters.saturating_add(state.skipped, invalid),
        )

    @with_default_promotion
    def sample(self, state: MaskedState, ring: Ring, key: Array, batch_size: int) -> Draw:
        shares = sum_tree.shares(key, batch_size, self.sampling)
        share = self._share_of_open(state, batch_size)
        total = sum_tree.total(state.open) / share
        beyond = jnp.maximum(total - sum_tree.total(state.open), 1e-30)
        scale = sum_tree.total(state.masked) / beyond
        near, far, is_open = two_trees.find(state.open, state.masked, shares, total, scale)
        slots = jnp.where(is_open, near, far)
        priority = self._priorities(state, slots)
        size = jnp.maximum(ring_.size(ring), 1)
        chance = priority / self._total(state)
        weights = self.base.weight(SamplingStats(chance, None, size, state.updates))
        return Draw(slots, buffer.after(buffer.fence(chance), weights))

    @with_default_promotion
    def update(
        self, state: MaskedState, ring: Ring, sample: Sample, **feedback: Array
    ) -> MaskedState:
        slots, valid = sample.indices, sample.indices != IGNORED
        safe = jnp.where(valid, slots, 0)
        leaf = self.base.leaf(feedback, slots, ring)
        invalid, largest = proportional.count_invalid_and_max(valid, leaf)
        trees = (state.open, state.masked)
        opened, hidden = buffer.once(tuple(sum_tree.get(tree, safe) for tree in trees))
        was_open, before = opened > 0, opened + hidden
        leaf = jnp.where((leaf >= 0) & (leaf < jnp.inf), leaf, before)
        progress = state.progress + len(slots) / self._total(state)
        # Every draw postpones `due` by one expected draw, also of duplicates.
        one = 1.0 / jnp.maximum(before, 1e-30)
        due = buffer.add(state.due, slots, one)
        excess = before * (buffer.read(due, safe) - progress)  # actual minus expected count
        later = progress + excess / jnp.maximum(leaf, 1e-30)
        later = jnp.where(leaf > 0, later, progress)
        ahead = (excess > _TOLERANCE) & (leaf > 0)
        closes, opens = valid & was_open & ahead, valid & ~was_open & ~ahead
        state = state._replace(
            open=sum_tree.set(state.open, slots, jnp.where(ahead, 0.0, leaf)),
            masked=sum_tree.set(state.masked, slots, jnp.where(ahead, leaf, 0.0)),
            due=buffer.write(due, slots, later),
            progress=progress,
            available=state.available - _count(slots, closes) + _count(slots, opens),
            max_leaf=jnp.maximum(state.max_leaf, largest),
            updates=counters.increment(state.updates),
            skipped=counters.saturating_add(state.skipped, invalid),
        )
        every = self.release_every or max(ring.capacity // (64 * len(slots)), 1)
        return cond_on_schedule(state.updates % every == 0, _release, state)

    @with_default_promotion
    def probability(self, state: MaskedState, ring: Ring, slots: Array, batch_size: int) -> Array:
        share = self._share_of_open(state, batch_size)
        chance = jnp.zeros(slots.shape, jnp.float32)
        for tree, part in ((state.open, share), (state.masked, 1 - share)):
            total = sum_tree.total(tree)
            chance += part * sum_tree.get(tree, slots) / jnp.where(total > 0, total, 1.0)
        return jnp.where(slots < ring_.size(ring), chance, 0.0)

    @with_default_promotion
    def metrics(self, state: MaskedState, ring: Ring) -> dict[str, Array]:
        size, total = jnp.maximum(ring_.size(ring), 1), self._total(state)
        return {
            "mean_priority": total / size,
            "max_priority": state.max_leaf,
            "masked_share": 1 - state.available / size,
            "skipped_leaves": state.skipped.astype(jnp.float32),
        }

    def _share_of_open(self, state: MaskedState, batch_size: int) -> Array:
        """Return the share of a batch to draw from `open`: all, if it contains enough rows."""
        available = jnp.minimum(jnp.maximum(state.available, 1) / batch_size, 1.0)
        share = jnp.where(sum_tree.total(state.masked) > 0, available, 1.0)
        return jnp.where(sum_tree.total(state.open) > 0, share, 0.0)

    def _total(self, state: MaskedState) -> Array:
        total = sum_tree.total(state.open) + sum_tree.total(state.masked)
        return jnp.where(total > 0, total, 1.0)

    def _priorities(self, state: MaskedState, slots: Array) -> Array:
        return sum_tree.get(state.open, slots) + sum_tree.get(state.masked, slots)


@check_config_class
def sampler(config: MaskedConfig = MaskedConfig()) -> Masked:
    """Return the RR-M sampler over the priorities of LAP."""
    leaf = lap.LAPLeaf(config.alpha, config.kappa)
    return Masked(Proportional(leaf), config.sampling, config.release_every)


def method(config: MaskedConfig = MaskedConfig()) -> Method:
    """Return RR-M over LAP: the sampler, and LAP's objective (see `lap`)."""
    return Method(sampler(config), lap.method(LAPConfig(kappa=config.kappa)).objective)


def combine(
    base: Method, sampling: Sampling = "stratified", release_every: int | None = None
) -> Method:
    """Return RR-M over another proportional method, with its priorities, weights and objective.

    Args:
      base: method with a `Proportional` sampler, such as `per.method()`.
      sampling: dependence between the draws in a batch; see `sum_tree.sample`.
      release_every: updates between searches for transitions to unmask; None means C / (64 B).

    Raises:
      ValueError: If the base is not a `Proportional`, or its weights use the smallest probability.
    """
    return base._replace(sampler=Masked(base.sampler, sampling, release_every))  # pyright: ignore[reportArgumentType]


def _release(state: MaskedState) -> MaskedState:
    """Unmask all transitions whose expected count has caught up, and restart `progress` at 0."""
    open, masked = sum_tree.leaves(state.open), sum_tree.leaves(state.masked)
    due = state.due - state.progress
    stays = (masked > 0) & (due * masked > _TOLERANCE)
    opened = jnp.where(stays, 0.0, open + masked)
    return state._replace(
        open=sum_tree.rebuild(state.open, opened),
        masked=sum_tree.rebuild(state.masked, jnp.where(stays, masked, 0.0)),
        due=due,
        progress=jnp.zeros_like(state.progress),
        available=(opened > 0).sum(dtype=jnp.int32),
    )


def _count(slots: Array, chosen: Array) -> Array:
    """Return the number of different slots among the chosen rows, `[]` int32."""
    # At typical batch sizes, comparing all pairs is several times faster than sorting.
    again = jnp.tril(slots[:, None] == slots, -1).any(axis=1)
    return (chosen & ~again).sum(dtype=jnp.int32)
