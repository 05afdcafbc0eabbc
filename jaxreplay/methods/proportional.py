"""Sampling in proportion to priorities that are kept in a sum tree.

PER and LAP are `Proportional` with a leaf and a weight; PSER, NERS and sequences use the functions.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import ring as ring_
from jaxreplay import sum_tree
from jaxreplay._internal import buffer, counters, numerics
from jaxreplay._internal.numerics import to_power
from jaxreplay._internal.schedules import Schedule
from jaxreplay._internal.tracing import as_by_default
from jaxreplay.ring import Ring
from jaxreplay.sampler import Sampler
from jaxreplay.sum_tree import Sampling, SumTree
from jaxreplay.types import Array, Draw, Requirements, Sample, Tree

Initial = Literal["max", "td"]
Normalisation = Literal["batch", "buffer", "none"]


class ProportionalState(NamedTuple):
    """Leaves, their largest so far, and a clock."""

    tree: SumTree  # leaves [C] float32, 0 where never written
    minimum: SumTree | None  # those above 0 in a tree of minima, if weights need the smallest
    max_leaf: Array  # [] float32, the largest leaf ever written, initially 1
    updates: Array  # [] int32, a clock: calls of update
    skipped: Array  # [] int32, leaves so far that were no number or negative, and left the old one


class SamplingStats(NamedTuple):
    """Quantities that importance weights depend on."""

    probability: Array  # [B] float32, of each drawn slot
    smallest: Array | None  # [] float32, smallest positive probability in the buffer, if it is kept
    size: Array  # [] int32, stored transitions
    updates: Array  # [] int32, calls of update so far


Weight = Callable[[SamplingStats], Array]  # returns importance weights [B] float32


def init(capacity: int, *, track_minimum: bool = False) -> ProportionalState:
    """Make the state of an empty buffer.

    Args:
      capacity: slots of the ring.
      track_minimum: keep a tree of minima, for weights that need the smallest probability.
    """
    minimum = sum_tree.init(capacity, reduce="min") if track_minimum else None
    return ProportionalState(
        tree=sum_tree.init(capacity),
        minimum=minimum,
        max_leaf=jnp.ones((), jnp.float32),
        updates=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
    )


def insert(
    state: ProportionalState, slots: Array, values: Array | None = None
) -> ProportionalState:
    """Give new transitions their leaves `[E]`: `values`, or the largest leaf so far.

    Values that are no leaves get the largest one as well: their slots would otherwise keep the
    leaf of the transition they held before.
    """
    if values is None:
        return _set(state, slots, jnp.broadcast_to(state.max_leaf, slots.shape))
    leaves = jnp.where((values >= 0) & (values < jnp.inf), values, state.max_leaf)
    return _update_stats(_set(state, slots, leaves), slots, values)


def write(state: ProportionalState, slots: Array, values: Array) -> ProportionalState:
    """Write the leaves `[B]` of an update; rows with an out-of-range slot are skipped."""
    state = _update_stats(_set(state, slots, values), slots, values)
    return state._replace(updates=counters.increment(state.updates))


@as_by_default
def draw(
    state: ProportionalState, ring: Ring, key: Array, batch_size: int, sampling: Sampling
) -> tuple[Array, SamplingStats]:
    """Draw slots `[B]` in proportion to their leaves.

    With every leaf at zero nothing distinguishes the slots: all are equally likely then.
    """
    size = jnp.maximum(ring_.size(ring), 1)
    total = sum_tree.total(state.tree)
    shares = sum_tree.shares(key, batch_size, sampling)
    evenly = numerics.scaled(shares, size.astype(jnp.uint32)).astype(jnp.int32)
    indices = jnp.where(total > 0, sum_tree.at_shares(state.tree, shares), evenly)
    safe_total = jnp.where(total > 0, total, 1.0)
    smallest = None
    if state.minimum is not None:
        least = sum_tree.total(state.minimum) / safe_total
        smallest = jnp.where(total > 0, least, 1.0 / size)
    return indices, SamplingStats(
        probability=probability(state, ring, indices),
        smallest=smallest,
        size=size,
        updates=state.updates,
    )


def probability(state: ProportionalState, ring: Ring, slots: Array) -> Array:
    """Return the probability `[n]` float32 of each slot: its leaf's share of the total."""
    total = sum_tree.total(state.tree)
    even = ring_.even_probability(ring, slots)
    safe_total = jnp.where(total > 0, total, 1.0)
    return jnp.where(total > 0, sum_tree.get(state.tree, slots) / safe_total, even)


@dataclasses.dataclass(frozen=True)
class ImportanceWeights:
    """Importance weights `(N P(i))^-beta` (Schaul et al. 2016, Sec. 3.4).

    Args:
      beta: exponent, a schedule over calls of `update`, such as `linear(0.4, 1.0, 10_000)`.
      normalise: divide by the largest weight of the "batch", of the "buffer", or of "none".
    """

    beta: Schedule
    normalise: Normalisation = "batch"

    def exponent(self, updates: Array) -> Array:
        """Return beta `[]` float32 after this many updates."""
        return jnp.asarray(self.beta(updates), jnp.float32)

    @as_by_default
    def __call__(self, stats: SamplingStats) -> Array:
        """Return the weights `[B]` float32."""
        minus = -self.exponent(stats.updates)
        if self.normalise == "buffer":
            if stats.smallest is None:
                raise ValueError(
                    'normalise "buffer" needs the smallest probability, which this sampler does '
                    'not keep: use "batch"'
                )
            return to_power(stats.probability / stats.smallest, minus)
        weights = to_power(stats.size * stats.probability, minus)
        return weights / weights.max() if self.normalise == "batch" else weights


def unweighted(stats: SamplingStats) -> Array:
    """Return weights of 1, `[B]` float32."""
    return jnp.ones_like(stats.probability)


@as_by_default
def metrics(state: ProportionalState, ring: Ring) -> dict[str, Array]:
    """Return mean, largest and quantiles of the leaves, and how many were skipped so far.

    A leaf is skipped if it is not finite or negative: the slot keeps the one of before.
    """
    size = jnp.maximum(ring_.size(ring), 1)
    return {
        "mean_priority": sum_tree.total(state.tree) / size,
        "max_priority": state.max_leaf,
        "skipped_leaves": state.skipped.astype(jnp.float32),
        **quantiles(lambda slots: sum_tree.get(state.tree, slots), size),
    }


@as_by_default
def quantiles(priority: Callable[[Array], Array], size: Array) -> dict[str, Array]:
    """Return the 10th, 50th and 90th percentile of the priorities of what is stored.

    Args:
      priority: slots `[n]` int32 -> `[n]` float32.
      size: `[]` int32, slots 0 to `size` - 1 are stored; of more than 4096, as many are looked at,
        at even distances.
    """
    looks = jnp.minimum(size, _LOOKS)
    places = jnp.arange(_LOOKS) % looks
    slots = (places * (size / looks)).astype(jnp.int32)
    # Where fewer are stored, only the first look at each counts.
    seen = jnp.sort(jnp.where(jnp.arange(_LOOKS) < looks, priority(slots), _LARGEST))
    place = jnp.array([0.1, 0.5, 0.9], jnp.float32) * (looks - 1)
    before = place.astype(jnp.int32)
    low, high = seen[before], seen[jnp.minimum(before + 1, looks - 1)]
    found = low + (high - low) * (place - before)
    return {f"priority_p{name}": value for name, value in zip((10, 50, 90), found, strict=True)}


_LOOKS = 4096


class Leaf(Protocol):
    """A function of feedback that returns priorities to the power of alpha, the tree's leaves."""

    def __call__(self, feedback: Mapping[str, Array], slots: Array, ring: Ring, /) -> Array:
        """Return the leaves `[B]` float32, not negative.

        Args:
          feedback: `[B]` each, by name.
          slots: `[B]` int32, the slots of the transitions, some of them `IGNORED`.
          ring: the transitions.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Proportional(Sampler):
    """Samples transition i with probability `leaf_i / sum_j leaf_j`.

    Args:
      leaf: the leaf of a transition, from its latest feedback.
      weight: importance weights `[B]` of a draw, such as `ImportanceWeights(beta)`.
      feedback: names of the feedback that `leaf` reads.
      sampling: dependence between the draws of a batch, see `sum_tree.sample`.
      initial: leaf of a new transition: the largest leaf so far, initially 1 ("max", Schaul et al.
        2016, Alg. 1), or that of the feedback that comes with it ("td").

    Example:
      >>> import jax.numpy as jnp
      >>> def leaf(feedback, slots, ring):
      ...     return jnp.abs(feedback["td_error"])
      >>> sampler = Proportional(leaf)
    """

    leaf: Leaf
    weight: Weight = unweighted
    feedback: frozenset[str] = frozenset({"td_error"})
    sampling: Sampling = "stratified"
    initial: Initial = "max"

    @property
    def requires(self) -> Requirements:
        """The feedback that `leaf` reads, with "td" also of new transitions."""
        of_new = self.feedback if self.initial == "td" else frozenset()
        return Requirements(feedback=self.feedback, feedback_of_new=of_new)

    def init(self, key: Array, ring: Ring) -> ProportionalState:
        """Return the state of an empty buffer."""
        del key
        return init(ring.capacity, track_minimum=needs_minimum(self.weight))

    def add(
        self,
        state: ProportionalState,
        ring: Ring,
        slots: Array,
        transition: Tree,
        **feedback: Array,
    ) -> ProportionalState:
        """Insert new transitions `[E]`."""
        del transition
        leaves = self.leaf(feedback, slots, ring) if self.initial == "td" else None
        return insert(state, slots, leaves)

    def sample(self, state: ProportionalState, ring: Ring, key: Array, batch_size: int) -> Draw:
        """Draw in proportion to the leaves."""
        indices, stats = draw(state, ring, key, batch_size, self.sampling)
        return Draw(indices, weights(self.weight, stats), probability=stats.probability)

    def update(
        self, state: ProportionalState, ring: Ring, sample: Sample, **feedback: Array
    ) -> ProportionalState:
        """Write the leaves of a batch."""
        return write(state, sample.indices, self.leaf(feedback, sample.indices, ring))

    def probability(
        self, state: ProportionalState, ring: Ring, slots: Array, batch_size: int
    ) -> Array:
        """Return the share of each leaf in their sum."""
        del batch_size
        return probability(state, ring, slots)

    def metrics(self, state: ProportionalState, ring: Ring) -> dict[str, Array]:
        """Return statistics of the leaves, and beta."""
        own = metrics(state, ring)
        if isinstance(self.weight, ImportanceWeights):
            own["beta"] = self.weight.exponent(state.updates)
        return own


def needs_minimum(weight: Weight) -> bool:
    """Return whether weights are normalised by the smallest probability in the buffer."""
    return isinstance(weight, ImportanceWeights) and weight.normalise == "buffer"


def weights(weight: Weight, stats: SamplingStats) -> Array:
    """Return the importance weights `[B]` of a draw.

    They are available only after the leaves were read, even if they do not depend on them: the next
    write of the tree waits for them.
    """
    return buffer.after(buffer.fence(stats.probability), weight(stats))


def check_valid(state: ProportionalState, ring: Ring) -> None:
    """Check a concrete state against its ring.

    Raises:
      ValueError: a tree is inconsistent, a slot never written has mass, or a leaf exceeds the
        running maximum.
    """
    sum_tree.check_valid(state.tree)
    leaves = sum_tree.leaves(state.tree)
    if leaves[int(ring_.size(ring)) :].any():
        raise ValueError("a slot that was never written has a priority")
    if leaves.max() > state.max_leaf:
        raise ValueError(f"a leaf of {leaves.max()} exceeds the running maximum {state.max_leaf}")
    if state.minimum is not None:
        sum_tree.check_valid(state.minimum)


def _set(state: ProportionalState, slots: Array, values: Array) -> ProportionalState:
    minimum = state.minimum
    if minimum is not None:
        # What has no mass is never drawn: no weight is divided by its own.
        minimum = sum_tree.set(minimum, slots, jnp.where(values == 0, _LARGEST, values))
    return state._replace(tree=sum_tree.set(state.tree, slots, values), minimum=minimum)


_LARGEST = np.finfo(np.float32).max


def _update_stats(state: ProportionalState, slots: Array, values: Array) -> ProportionalState:
    overflown, largest = count_invalid_and_max(slots < state.tree.capacity, values)
    skipped = counters.saturating_add(state.skipped, overflown)
    return state._replace(skipped=skipped, max_leaf=jnp.maximum(state.max_leaf, largest))


def count_invalid_and_max(live: Array, values: Array) -> tuple[Array, Array]:
    """Return how many leaves `[B]` are no leaves, `[]` int32, and the largest of the others.

    Those are not finite, as of errors beyond float32's powers, or negative: the tree skips them. Of
    the leaves that are not `live` `[B]`, neither counts; the largest is at least 0. One reduction
    finds both: XLA makes two operations of each that is alone.
    """
    values = values.astype(jnp.float32)
    told = jnp.where(live, values, 0.0)
    written = jnp.where(jnp.isfinite(told), told, 0.0)
    lost = (jnp.abs(written) != told).astype(jnp.int32)  # one comparison for either kind
    return jax.lax.reduce((lost, written), (np.int32(0), np.float32(0)), _sum_and_maximum, (0,))


def _sum_and_maximum(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    return x[0] + y[0], jnp.maximum(x[1], y[1])
