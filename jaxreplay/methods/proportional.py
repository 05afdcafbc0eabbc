"""Sampling in proportion to the leaves of a sum tree.

The leaf of a transition with priority p is p^alpha in PER. PER and LAP are instances of
`Proportional` with different leaves and weights. Other methods, such as PSER and NERS, store a
`ProportionalState` and call the functions in this module.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import buffer, counters, devices, schedules, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.methods import options
from jaxreplay.numerics import to_power
from jaxreplay.ring import Ring
from jaxreplay.sampler import Sampler
from jaxreplay.schedules import Schedule
from jaxreplay.sum_tree import Sampling, SumTree
from jaxreplay.types import Array, Draw, Requirements, Sample, Tree


class ProportionalState(NamedTuple):
    """Leaves of all slots, their running maximum, and counters."""

    tree: SumTree  # leaves [C] float32, initially 0
    minimum: SumTree | None  # min tree over the positive leaves; None if not tracked
    max_leaf: Array  # [] float32, running maximum of the leaves, initially 1
    updates: Array  # [] int32, number of calls to `update`
    skipped: Array  # [] int32, number of negative, NaN or infinite leaves that were skipped
    maximum: SumTree | None = None  # max tree over the leaves; None if not tracked


def init(
    capacity: int,
    *,
    maximum: options.Maximum = "all_time",
    normalise: options.Normalisation = "none",
) -> ProportionalState:
    """Return the state for an empty buffer.

    Args:
      capacity: C, the number of slots in the ring buffer.
      maximum: "stored" adds a max tree, from which `largest` reads the maximum over stored
        transitions.
      normalise: "buffer" adds a min tree, from which `weights` reads the smallest probability.
    """
    minimum = sum_tree.init(capacity, reduce="min") if normalise == "buffer" else None
    return ProportionalState(
        tree=sum_tree.init(capacity),
        minimum=minimum,
        max_leaf=jnp.ones((), jnp.float32),
        updates=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
        maximum=sum_tree.init(capacity, reduce="max") if maximum == "stored" else None,
    )


def largest(state: ProportionalState, axis_name: str | None = None) -> Array:
    """Return the largest leaf, `[]` float32, which new transitions receive.

    The largest leaf is the running maximum of all time or, with a max tree, the maximum over the
    stored transitions, or 1 if that maximum is 0. With `axis_name`, it is the maximum over all
    devices.
    """
    if state.maximum is None:
        return state.max_leaf
    stored = devices.largest(sum_tree.total(state.maximum), axis_name)
    return jnp.where(stored > 0, stored, 1.0)


def insert(
    state: ProportionalState,
    slots: Array,
    leaves: Array | None = None,
    axis_name: str | None = None,
) -> ProportionalState:
    """Store the leaves `[E]` of new transitions at `slots` `[E]` int32.

    Transitions without a valid leaf (None, negative, NaN or infinite) get the maximum (see
    `largest`). Without a write, their slots would keep the leaves of overwritten transitions.
    """
    if state.maximum is not None:  # overwritten transitions do not count
        none = jnp.zeros(slots.shape, jnp.float32)
        state = state._replace(maximum=sum_tree.set(state.maximum, slots, none))
    if leaves is None:
        return _set(state, slots, jnp.broadcast_to(largest(state, axis_name), slots.shape))
    valid = (leaves >= 0) & (leaves < jnp.inf)
    state = _set(state, slots, jnp.where(valid, leaves, largest(state, axis_name)))
    return _count(state, slots, leaves, axis_name)


def write(
    state: ProportionalState, slots: Array, leaves: Array, axis_name: str | None = None
) -> ProportionalState:
    """Update the leaves `[B]` of a batch at `slots` `[B]` int32, and count the update.

    `IGNORED` slots and leaves that are negative, NaN or infinite are skipped.
    """
    state = _count(_set(state, slots, leaves), slots, leaves, axis_name)
    return state._replace(updates=counters.increment(state.updates))


def refresh(
    state: ProportionalState, slots: Array, leaves: Array, axis_name: str | None = None
) -> ProportionalState:
    """Set the leaves `[n]` of `slots` `[n]` int32, and reset the running maximum.

    The running maximum becomes the largest leaf of all slots. Unlike `write`, `refresh` does not
    count as an update. `IGNORED` slots and leaves that are negative, NaN or infinite are skipped.
    """
    state = _count(_set(state, slots, leaves), slots, leaves, axis_name)
    highest = devices.largest(sum_tree.leaves(state.tree).max(), axis_name)
    return state._replace(max_leaf=jnp.where(highest > 0, highest, 1.0))


def draw(
    state: ProportionalState, ring: Ring, key: Array, batch_size: int, sampling: Sampling
) -> tuple[Array, Array]:
    """Sample slots in proportion to their leaves, or uniformly if all leaves are 0.

    Returns:
      Slots `[B]` int32, where B is `batch_size`, and their probabilities `[B]` float32.
    """
    size = jnp.maximum(ring_.size(ring), 1)
    slots = sum_tree.sample(state.tree, key, batch_size, sampling, size)
    return slots, probability(state, ring, slots)


def probability(state: ProportionalState, ring: Ring, slots: Array) -> Array:
    """Return the probabilities `[n]` float32 of `slots` `[n]`: leaf / sum of leaves.

    Each of D devices contributes 1 / D of a batch, so its probabilities sum to 1 / D.
    """
    total = sum_tree.total(state.tree)
    even = ring_.even_probability(ring, slots)
    safe_total = jnp.where(total > 0, total, 1.0)
    return jnp.where(
        total > 0,
        devices.share(sum_tree.get(state.tree, slots) / safe_total, ring.axis_name),
        even,
    )


@dataclasses.dataclass(frozen=True)
class ImportanceWeights:
    """Importance weights `(N P(i))^-beta` for N stored transitions (Schaul et al. 2016, Sec. 3.4).

    Args:
      beta: schedule of the exponent over calls to `update`, such as `linear(0.4, 1.0, 10_000)`.
      normalise: divide by the largest weight in the "batch" or the "buffer", or not ("none").
    """

    beta: Schedule
    normalise: options.Normalisation = "batch"

    def exponent(self, updates: Array) -> Array:
        """Return beta `[]` float32 after `updates` `[]` int32 calls to `update`."""
        return jnp.asarray(self.beta(updates), jnp.float32)

    def __call__(
        self,
        probability: Array,
        size: Array,
        updates: Array,
        smallest: Array | None = None,
        axis_name: str | None = None,
    ) -> Array:
        """Return the weights `[B]` float32.

        Args:
          probability: `[B]` float32, P(i) of each sampled slot.
          size: `[]` int32, number of stored transitions N.
          updates: `[]` int32, number of calls to `update`.
          smallest: `[]` float32, smallest positive probability in the buffer.
          axis_name: mesh axis over which the batch is sharded.

        Raises:
          ValueError: If `normalise` is "buffer" and `smallest` is None.
        """
        minus = -self.exponent(updates)
        if self.normalise == "buffer":
            if smallest is None:
                raise ValueError(
                    'normalise must be "batch" or "none", got "buffer", which requires a sampler '
                    "that tracks the smallest probability: in its init, use "
                    'proportional.init(capacity, normalise="buffer")'
                )
            return to_power(probability / smallest, minus)
        weights = to_power(size * probability, minus)
        if self.normalise == "none":
            return weights
        return weights / devices.largest(weights.max(), axis_name)


def importance_weights(config: Any) -> ImportanceWeights:
    """Return the importance weights that the options of a config define.

    The options are `beta`, `beta_end`, `beta_updates` and `normalise`. Beta is constant unless
    `beta_updates` sets the length of its schedule.
    """
    beta = schedules.linear(config.beta, config.beta_end, config.beta_updates)
    return ImportanceWeights(beta, config.normalise)


def weights(
    weight: ImportanceWeights | None, state: ProportionalState, ring: Ring, probability: Array
) -> Array:
    """Return the importance weights `[B]` float32 of slots drawn with `probability` `[B]`.

    The weights are 1 if `weight` is None. Even constant weights are made to depend on the leaves
    that were read, so that XLA updates the tree in place.
    """
    if weight is None:
        values = jnp.ones_like(probability)
    else:
        size = jnp.maximum(ring_.size(ring), 1)
        smallest = None
        if state.minimum is not None:
            total = sum_tree.total(state.tree)
            least = sum_tree.total(state.minimum) / jnp.where(total > 0, total, 1.0)
            smallest = jnp.where(total > 0, least, 1.0 / size)
            smallest = -devices.largest(-devices.share(smallest, ring.axis_name), ring.axis_name)
        size = devices.times(size, ring.axis_name)
        values = weight(probability, size, state.updates, smallest, ring.axis_name)
    return buffer.wait(buffer.fence(probability), values)


def metrics(state: ProportionalState, ring: Ring) -> dict[str, Array]:
    """Return the mean, the maximum (see `largest`) and quantiles of the sum tree's leaves.

    `skipped_leaves` counts leaves that were skipped as negative, NaN or infinite.
    """
    size, axis = jnp.maximum(ring_.size(ring), 1), ring.axis_name
    return {
        "mean_priority": devices.mean(sum_tree.total(state.tree) / size, axis),
        "max_priority": largest(state, axis),
        "skipped_leaves": devices.total(state.skipped.astype(jnp.float32), axis),
        **quantiles(lambda slots: sum_tree.get(state.tree, slots), size, axis),
    }


def quantiles(
    leaf: Callable[[Array], Array], size: Array, axis_name: str | None = None
) -> dict[str, Array]:
    """Return the 10th, 50th and 90th percentiles of the leaves of stored transitions.

    Percentiles are interpolated linearly from the leaves of at most 4096 evenly spaced slots,
    on each device of a mesh axis.

    Args:
      leaf: function from slots `[n]` int32 to leaves `[n]` float32.
      size: `[]` int32, number of stored transitions (at slots 0 to `size` - 1), at least 1.
    """
    count = jnp.minimum(size, _MAX_QUANTILE_SLOTS)
    number = jnp.arange(_MAX_QUANTILE_SLOTS)
    slots = (number % count * (size / count)).astype(jnp.int32)
    # The array has a static size; entries from index `count` on are duplicates, sorted last.
    values = jnp.where(number < count, leaf(slots), _LARGEST)
    ordered = jnp.sort(devices.gathered(values, axis_name))
    count = count * devices.count(axis_name) if axis_name is not None else count
    place = jnp.array([0.1, 0.5, 0.9], jnp.float32) * (count - 1)
    before = place.astype(jnp.int32)
    low, high = ordered[before], ordered[jnp.minimum(before + 1, count - 1)]
    values = low + (high - low) * (place - before)
    return {f"priority_p{name}": value for name, value in zip((10, 50, 90), values, strict=True)}


_MAX_QUANTILE_SLOTS = 4096
_LARGEST = np.finfo(np.float32).max  # finite, for runs with `jax_debug_infs`


@dataclasses.dataclass(frozen=True)
class Proportional(Sampler):
    """Samples transition i with probability `leaf_i / sum_j leaf_j`.

    The leaf is `p_i^alpha` in PER (Schaul et al. 2016, Eq. 1), for priorities `p_i`.

    Args:
      leaf: `leaf(feedback, slots, ring)` returns the non-negative leaves `[B]` float32, such as
        p^alpha for priorities p, of the transitions at `slots` `[B]` int32 (some may be `IGNORED`);
        `feedback` maps names to `[B]` float32. Implement it as a frozen dataclass if samplers with
        equal options must be equal.
      weight: importance weights, such as `ImportanceWeights(beta)`; None for weights of 1.
      feedback: names of the feedback that `leaf` reads, such as "td_error".
      sampling: dependence between the draws in a batch; see `sum_tree.sample`.
      initial: leaf of a new transition. "max" is the running maximum, initially 1
        (Schaul et al. 2016, Alg. 1); "td" computes it from the feedback passed to `Replay.add`.
      maximum: with `initial="max"`, new transitions receive the maximum of "all_time", or of the
        "stored" transitions.
      transition_fields: names of the fields of stored transitions that `leaf` reads, for example by
        `types.get_field(jaxreplay.ring.gather(memory, slots), "reward")`, where `memory` is the
        argument `ring` of `leaf`.

    Example:
      >>> import jax.numpy as jnp
      >>> def leaf(feedback, slots, ring):
      ...     return jnp.abs(feedback["td_error"]) ** 0.6
      >>> sampler = Proportional(leaf)
    """

    leaf: Callable[[Mapping[str, Array], Array, Ring], Array]
    weight: ImportanceWeights | None = None
    feedback: frozenset[str] = frozenset({"td_error"})
    sampling: Sampling = "stratified"
    initial: options.Initial = "max"
    maximum: options.Maximum = "all_time"
    transition_fields: frozenset[str] = frozenset()
    needs_whole = None

    @property
    def requires(self) -> Requirements:
        return Requirements(
            feedback=self.feedback,
            feedback_of_new=self.feedback if self.initial == "td" else frozenset(),
            transition_fields=self.transition_fields,
        )

    def init(self, key: Array, ring: Ring) -> ProportionalState:
        normalise = "none" if self.weight is None else self.weight.normalise
        return init(ring.capacity, maximum=self.maximum, normalise=normalise)

    def add(
        self,
        state: ProportionalState,
        ring: Ring,
        slots: Array,
        transition: Tree,
        **feedback: Array,
    ) -> ProportionalState:
        leaves = self._leaves(feedback, slots, ring) if self.initial == "td" else None
        return insert(state, slots, leaves, ring.axis_name)

    def sample(self, state: ProportionalState, ring: Ring, key: Array, batch_size: int) -> Draw:
        slots, chance = draw(state, ring, key, batch_size, self.sampling)
        return Draw(slots, weights(self.weight, state, ring, chance), probability=chance)

    def update(
        self, state: ProportionalState, ring: Ring, sample: Sample, **feedback: Array
    ) -> ProportionalState:
        leaves = self._leaves(feedback, sample.indices, ring)
        return write(state, sample.indices, leaves, ring.axis_name)

    def refresh(
        self, state: ProportionalState, ring: Ring, slots: Array, **feedback: Array
    ) -> ProportionalState:
        return refresh(state, slots, self._leaves(feedback, slots, ring), ring.axis_name)

    def probability(
        self, state: ProportionalState, ring: Ring, slots: Array, batch_size: int
    ) -> Array:
        return probability(state, ring, slots)

    def metrics(self, state: ProportionalState, ring: Ring) -> dict[str, Array]:
        if self.weight is None:
            return metrics(state, ring)
        return metrics(state, ring) | {"beta": self.weight.exponent(state.updates)}

    def _leaves(self, feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        leaves = self.leaf(feedback, slots, ring)
        shape = jnp.shape(leaves) if isinstance(leaves, jax.Array) else type(leaves).__name__
        if shape != slots.shape:
            raise ValueError(
                f"leaf must return an array with one number for each of {slots.size} slots, "
                f"{list(slots.shape)}, got {list(shape) if isinstance(shape, tuple) else shape}"
            )
        return leaves


def check_valid(state: ProportionalState, ring: Ring) -> None:
    """Check outside jit that a state is consistent with its ring buffer.

    Raises:
      ValueError: If a tree is inconsistent, an empty slot has a positive leaf, or a
        leaf exceeds the running maximum.
    """
    sum_tree.check_valid(state.tree)
    leaves = sum_tree.leaves(state.tree)
    if leaves[int(ring_.size(ring)) :].any():
        raise ValueError("the leaf of an empty slot must be 0")
    if leaves.max() > state.max_leaf:
        raise ValueError(f"leaf {leaves.max()} exceeds the running maximum {state.max_leaf}")
    for extremes in (state.minimum, state.maximum):
        if extremes is not None:
            sum_tree.check_valid(extremes)


def _set(state: ProportionalState, slots: Array, leaves: Array) -> ProportionalState:
    minimum = state.minimum
    if minimum is not None:
        # Exclude leaves of 0 from the minimum because they are never sampled.
        minimum = sum_tree.set(minimum, slots, jnp.where(leaves == 0, _LARGEST, leaves))
    maximum = state.maximum
    if maximum is not None:
        maximum = sum_tree.set(maximum, slots, leaves)
    tree = sum_tree.set(state.tree, slots, leaves)
    return state._replace(tree=tree, minimum=minimum, maximum=maximum)


def _count(
    state: ProportionalState, slots: Array, leaves: Array, axis_name: str | None
) -> ProportionalState:
    invalid, highest = count_invalid_and_max(slots < state.tree.capacity, leaves)
    skipped = counters.saturating_add(state.skipped, invalid)
    highest = devices.largest(highest, axis_name)
    return state._replace(skipped=skipped, max_leaf=jnp.maximum(state.max_leaf, highest))


def count_invalid_and_max(live: Array, values: Array) -> tuple[Array, Array]:
    """Return the number of invalid leaves, `[]` int32, and the largest valid one, `[]` float32.

    The tree skips invalid leaves: those that are negative, NaN or infinite (powers of TD errors
    may overflow). The maximum is at least 0. A single reduction computes both results, because XLA
    compiles two separate reductions to two operations each.

    Args:
      live: `[B]` bool; False excludes a leaf from both results.
      values: `[B]`, leaves.
    """
    values = jnp.where(live, values.astype(jnp.float32), 0.0)
    valid = jnp.where(jnp.isfinite(values), values, 0.0)
    invalid = (jnp.abs(valid) != values).astype(jnp.int32)  # negative, NaN or infinite
    return jax.lax.reduce((invalid, valid), (np.int32(0), np.float32(0)), _sum_and_maximum, (0,))


def _sum_and_maximum(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    return x[0] + y[0], jnp.maximum(x[1], y[1])
