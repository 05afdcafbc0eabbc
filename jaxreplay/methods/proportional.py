"""The machinery of methods that sample in proportion to a leaf value kept in a sum tree.

Not a method by itself: PER, LAP, PSER and NERS say how a transition becomes a leaf, and what
weights a draw gets.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import clocks, schedules, sum_tree
from jaxreplay import ring as ring_
from jaxreplay._internal import buffer, random_bits
from jaxreplay._internal.powers import to_power
from jaxreplay._internal.promotion import as_by_default
from jaxreplay.fields import Row
from jaxreplay.requirements import Requirements
from jaxreplay.ring import Ring
from jaxreplay.sum_tree import Sampling, SumTree
from jaxreplay.types import Array, Draw, Sample, Sampler

Initial = Literal["max", "td"]
Normalisation = Literal["batch", "buffer", "none"]


class ProportionalState(NamedTuple):
    """Leaves, their largest so far, and a clock."""

    tree: SumTree  # leaves [C] float32, 0 where never written
    minimum: SumTree | None  # those above 0 in a tree of minima, if weights need the smallest
    max_leaf: Array  # [] float32, the largest leaf ever written, initially 1
    updates: Array  # [] int32, a clock: calls of update
    skipped: Array  # [] int32, leaves so far that were no number or negative, and left the old one


class Odds(NamedTuple):
    """What importance weights are made of."""

    probability: Array  # [B] float32, of each drawn slot
    smallest: Array | None  # [] float32, of the least likely slot that can be drawn; None: not kept
    size: Array  # [] int32, live slots
    updates: Array  # [] int32, calls of update so far


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


def enter(state: ProportionalState, slots: Array, values: Array | None = None) -> ProportionalState:
    """Give new transitions their leaves `[E]`: `values`, or the largest leaf so far.

    Values that are no leaves get the largest one as well: their slots would otherwise keep the
    leaf of the transition they held before.
    """
    if values is None:
        return _set(state, slots, jnp.broadcast_to(state.max_leaf, slots.shape))
    leaves = jnp.where((values >= 0) & (values < jnp.inf), values, state.max_leaf)
    return _noted(_set(state, slots, leaves), slots, values)


def write(state: ProportionalState, slots: Array, values: Array) -> ProportionalState:
    """Write the leaves `[B]` of an update; rows with an out-of-range slot are skipped."""
    state = _noted(_set(state, slots, values), slots, values)
    return state._replace(updates=clocks.tick(state.updates))


@as_by_default
def draw(
    state: ProportionalState, ring: Ring, key: Array, batch_size: int, sampling: Sampling
) -> tuple[Array, Odds]:
    """Draw slots `[B]` in proportion to their leaves.

    With every leaf at zero nothing distinguishes the slots: all are equally likely then.
    """
    size = jnp.maximum(ring_.size(ring), 1)
    total = sum_tree.total(state.tree)
    shares = sum_tree.shares(key, batch_size, sampling)
    evenly = random_bits.scaled(shares, size.astype(jnp.uint32)).astype(jnp.int32)
    indices = jnp.where(total > 0, sum_tree.at_shares(state.tree, shares), evenly)
    safe_total = jnp.where(total > 0, total, 1.0)
    smallest = None
    if state.minimum is not None:
        least = sum_tree.total(state.minimum) / safe_total
        smallest = jnp.where(total > 0, least, 1.0 / size)
    return indices, Odds(
        probability=probability(state, ring, indices),
        smallest=smallest,
        size=size,
        updates=state.updates,
    )


def probability(
    state: ProportionalState, ring: Ring, slots: Array, batch_size: int | None = None
) -> Array:
    """Return how likely `[n]` each slot is to be drawn, whatever the batch size."""
    del batch_size
    total = sum_tree.total(state.tree)
    even = ring_.even_probability(ring, slots)
    safe_total = jnp.where(total > 0, total, 1.0)
    return jnp.where(total > 0, sum_tree.get(state.tree, slots) / safe_total, even)


def exponent(beta: float, beta_end: float, horizon: int | None) -> Callable[[Array], Array]:
    """Make the exponent of importance weights `[]`, a function of the updates so far.

    Args:
      beta: the exponent at the first update.
      beta_end: the exponent from update `horizon` on; linear in between.
      horizon: updates; None keeps `beta`.
    """
    schedule = schedules.linear(beta, beta_end, horizon)
    return lambda updates: jnp.asarray(schedule(updates), jnp.float32)


def importance(
    beta: float, beta_end: float, horizon: int | None, normalise: Normalisation
) -> Callable[[Odds], Array]:
    """Make the weights `(N P(i))^-beta` `[B]` (Schaul et al. 2016, Sec. 3.4).

    Args:
      beta: as in `exponent`, like the next two.
      beta_end: where beta goes.
      horizon: in how many updates.
      normalise: the largest weight that they are divided by: "batch", "buffer" (which needs
        `Odds.smallest`, that is, a state with `track_minimum`) or "none".

    Raises:
      ValueError: when the weights are traced, "buffer" without `Odds.smallest`.
    """
    power = exponent(beta, beta_end, horizon)

    @as_by_default
    def weigh(odds: Odds) -> Array:
        minus = -power(odds.updates)
        if normalise == "buffer":
            if odds.smallest is None:
                raise ValueError(
                    "weights normalised over the buffer need the smallest probability: "
                    "make the sampler with track_minimum=True"
                )
            return to_power(odds.probability / odds.smallest, minus)
        weights = to_power(odds.size * odds.probability, minus)
        return weights / weights.max() if normalise == "batch" else weights

    return weigh


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
    """What makes a transition's leaf."""

    def __call__(self, feedback: Mapping[str, Array], slots: Array, ring: Ring, /) -> Array:
        """Return the leaves `[B]` float32, not negative.

        Args:
          feedback: `[B]` each, by name.
          slots: `[B]` int32, where the transitions are; rows whose slot is out of range are
            skipped, whatever their leaf.
          ring: the transitions, and how old they are.
        """
        ...


def of_td_error(priority: Callable[[Array], Array]) -> Leaf:
    """Make the leaf that is a function of TD errors `[B]` alone."""

    def leaf(feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        del slots, ring
        return priority(feedback["td_error"])

    return leaf


def sampler(
    leaf: Leaf,
    weigh: Callable[[Odds], Array],
    *,
    feedback: Iterable[str] = ("td_error",),
    sampling: Sampling = "stratified",
    initial: Initial = "max",
    track_minimum: bool = False,
    beta: Callable[[Array], Array] | None = None,
) -> Sampler:
    """Make the sampler of a method whose leaf is a function of the latest feedback.

    Args:
      leaf: what a transition's leaf is; `of_td_error` makes one from a function of TD errors.
      weigh: what the draws' weights `[B]` are.
      feedback: what `leaf` reads.
      sampling: how the draws of a batch hang together, see `sum_tree.sample`.
      initial: new transitions enter with the running maximum over everything ever written,
        initially 1 ("max", Schaul et al. 2016, Alg. 1), or with the leaf of their feedback ("td").
      track_minimum: keep a tree of minima, for weights that need the smallest probability.
      beta: the exponent of the weights, a function of the updates so far, for the metrics.
    """

    def start(key: Array, ring: Ring) -> ProportionalState:
        del key
        return init(ring.capacity, track_minimum=track_minimum)

    def add(
        state: ProportionalState,
        ring: Ring,
        slots: Array,
        transition: Row,
        **feedback: Array,
    ) -> ProportionalState:
        del transition
        return enter(state, slots, leaf(feedback, slots, ring) if initial == "td" else None)

    def sample(state: ProportionalState, ring: Ring, key: Array, batch_size: int) -> Draw:
        indices, odds = draw(state, ring, key, batch_size, sampling)
        # Whatever the weights are made of: a leaf that is read comes before the next write.
        weights = buffer.after(buffer.fence(odds.probability), weigh(odds))
        return Draw(indices, weights, probability=odds.probability)

    def update(
        state: ProportionalState, ring: Ring, sample: Sample, **feedback: Array
    ) -> ProportionalState:
        return write(state, sample.indices, leaf(feedback, sample.indices, ring))

    def tell(state: ProportionalState, ring: Ring) -> dict[str, Array]:
        own = metrics(state, ring)
        return own if beta is None else own | {"beta": beta(state.updates)}

    read = frozenset(feedback)
    requires = Requirements(feedback=read, feedback_of_new=read if initial == "td" else frozenset())
    return Sampler(
        start, add, sample, update, probability=probability, metrics=tell, requires=requires
    )


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


def _noted(state: ProportionalState, slots: Array, values: Array) -> ProportionalState:
    overflown, largest = looked_through(slots < state.tree.capacity, values)
    skipped = clocks.total(state.skipped, overflown)
    return state._replace(skipped=skipped, max_leaf=jnp.maximum(state.max_leaf, largest))


def looked_through(live: Array, values: Array) -> tuple[Array, Array]:
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
