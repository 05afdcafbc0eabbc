"""The machinery that PER and LAP share: sampling in proportion to a leaf value kept in a sum tree.

Not a method by itself: a method says how a TD error becomes a leaf, and what weights a draw gets.
"""

from collections.abc import Callable

import jax.numpy as jnp
from flax import struct

from jaxreplay import ring as ring_
from jaxreplay import sum_tree
from jaxreplay.ring import Ring
from jaxreplay.sum_tree import SumTree
from jaxreplay.types import Array, Draw, Sample, Sampler, Transition


@struct.dataclass
class ProportionalState:
    """Leaves, their largest so far, and a clock."""

    tree: SumTree  # leaves [C] float32, 0 where never written
    minimum: SumTree | None  # the same leaves in a tree of minima, if weights need the smallest
    max_leaf: Array  # [] float32, the largest leaf ever written, initially 1
    updates: Array  # [] int32, a clock: calls of update


class Odds(struct.PyTreeNode):
    """What importance weights are made of."""

    probability: Array  # [B] float32, of each drawn slot
    smallest: Array  # [] float32, of the least likely live slot (nan without a tree of minima)
    size: Array  # [] int32, live slots
    updates: Array  # [] int32, calls of update so far


def sampler(
    leaf: Callable[[Array], Array],
    weigh: Callable[[Odds], Array],
    *,
    stratified: bool = True,
    track_minimum: bool = False,
    branching: int | None = None,
) -> Sampler:
    """Make a sampler whose new transitions get the largest leaf so far.

    Schaul et al. 2016, Alg. 1: new transitions enter with the running maximum over everything
    ever written (initially 1), so that each is likely to be replayed soon.

    Args:
      leaf: TD errors `[B]` -> leaves `[B]`, not negative.
      weigh: what the draws' weights `[B]` are.
      stratified: one draw in each of B equal ranges of the total, or independent draws.
      track_minimum: keep a tree of minima, for weights that need the smallest probability.
      branching: children per node of the tree; None takes the backend's default.
    """

    def init(key: Array, capacity: int) -> ProportionalState:
        del key
        minimum = sum_tree.init(capacity, branching, reduce="min") if track_minimum else None
        return ProportionalState(
            tree=sum_tree.init(capacity, branching),
            minimum=minimum,
            max_leaf=jnp.ones((), jnp.float32),
            updates=jnp.zeros((), jnp.int32),
        )

    def write(state: ProportionalState, slots: Array, values: Array) -> ProportionalState:
        minimum = state.minimum
        if minimum is not None:
            minimum = sum_tree.set(minimum, slots, values)
        return state.replace(tree=sum_tree.set(state.tree, slots, values), minimum=minimum)

    def add(
        state: ProportionalState, ring: Ring, slots: Array, transition: Transition
    ) -> ProportionalState:
        del ring, transition
        return write(state, slots, jnp.broadcast_to(state.max_leaf, slots.shape))

    def sample(state: ProportionalState, ring: Ring, key: Array, batch_size: int) -> Draw:
        size = jnp.maximum(ring_.size(ring), 1)
        total = sum_tree.total(state.tree)
        drawn = sum_tree.sample(state.tree, key, batch_size, stratified)
        # With every leaf at zero nothing distinguishes the slots: spread the draws over them all.
        evenly = (jnp.arange(batch_size) * (size / batch_size)).astype(jnp.int32)
        indices = jnp.where(total > 0, drawn, evenly)
        safe_total = jnp.where(total > 0, total, 1.0)
        even_odds = 1.0 / size
        probability = sum_tree.get(state.tree, indices) / safe_total
        smallest = jnp.nan if state.minimum is None else sum_tree.total(state.minimum) / safe_total
        odds = Odds(
            probability=jnp.where(total > 0, probability, even_odds),
            smallest=jnp.where(total > 0, smallest, even_odds),
            size=size,
            updates=state.updates,
        )
        return Draw(indices, weigh(odds))

    def update(
        state: ProportionalState, ring: Ring, sample: Sample, *, td_error: Array, **_: Array
    ) -> ProportionalState:
        del ring
        values = leaf(td_error)
        written = jnp.where(sample.indices < state.tree.capacity, values, 0.0)
        state = write(state, sample.indices, values)
        return state.replace(
            max_leaf=jnp.maximum(state.max_leaf, written.max()), updates=state.updates + 1
        )

    def observe(state: ProportionalState, ring: Ring, score: Array, key: Array):
        del ring, score, key
        return state

    def metrics(state: ProportionalState, ring: Ring) -> dict[str, Array]:
        mean = sum_tree.total(state.tree) / jnp.maximum(ring_.size(ring), 1)
        return {"mean_priority": mean, "max_priority": state.max_leaf}

    return Sampler(init, add, sample, update, observe, metrics)


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
