"""How the cost of a cycle and the memory of the tree grow with the capacity."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from experiments.benchmarks import loops, timing
from experiments.benchmarks.measure import Settings
from experiments.benchmarks.peers import ours
from experiments.runs.log import say
from jaxreplay import sum_tree
from jaxreplay.types import Array

CAPACITIES = tuple(2**power for power in range(14, 25, 2))
_BRANCHINGS = (2, 4, 8, 16, 32, 128)


@dataclasses.dataclass(frozen=True)
class Growth:
    """Costs at one capacity, also relative to those at the smallest."""

    capacity: int
    batch_size: int
    replay_us: float  # a whole cycle with rows on the ring
    replay_ratio: float  # to the time at the smallest capacity, turn by turn
    tree_us: float  # sampling and setting leaves of the tree alone
    tree_ratio: float
    tree_memory: float  # bytes of the tree / bytes of its leaves


def grow(capacities: Sequence[int], batch_size: int, settings: Settings) -> list[Growth]:
    """Time our prioritised replay, and its tree alone, at several capacities that take turns."""
    replays, trees = {}, {}
    for capacity in capacities:
        say(f"  filling {capacity:,} slots")
        replays[capacity] = _replay(capacity, batch_size, settings.order[0])
        trees[capacity] = _tree(capacity, batch_size)
    times = []
    for what, built in (("replay", replays), ("tree alone", trees)):
        say(f"  {what}")
        runs = {str(capacity): loop.run for capacity, loop in built.items()}
        times.append(timing.take_turns(runs, settings.turns, settings.seconds))
    first = str(min(capacities))
    return [
        Growth(
            capacity,
            batch_size,
            *(
                number
                for each in times
                for number in (
                    statistics.median(each[str(capacity)]),
                    timing.ratio(each[str(capacity)], each[first]),
                )
            ),
            tree_memory=memory(capacity),
        )
        for capacity in capacities
    ]


def memory(capacity: int, branching: int | None = None) -> float:
    """Return the bytes of a tree relative to those of its leaves (4 bytes each)."""
    tree = jax.eval_shape(lambda: sum_tree.init(capacity, branching))
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    return size / (4 * capacity)


def memories(capacity: int) -> dict[int, float]:
    """Return `memory` by branching factor."""
    return {branching: memory(capacity, branching) for branching in _BRANCHINGS}


def _replay(capacity: int, batch_size: int, order: str) -> loops.Loop:
    peer = next(peer for peer in ours.peers() if peer.prioritised)
    replay = peer.replay(capacity, batch_size)
    fed = loops.inputs(jax.random.key(0), batch_size)
    return loops.Loop(loops.cycle(replay, order), loops.start(loops.filled(replay)), fed, capacity)


def _tree(capacity: int, batch_size: int) -> loops.Loop:
    def step(carry: loops.Carry, fed: loops.Inputs, number: Array) -> loops.Carry:
        key, noise = loops.at(fed.keys, number), loops.at(fed.noise, number)
        indices = sum_tree.sample(carry.replay, key, batch_size)
        tree = sum_tree.set(carry.replay, indices, jnp.abs(noise))
        return carry._replace(replay=tree)

    leaves = jax.random.uniform(jax.random.key(1), (capacity,))
    tree = jax.jit(lambda leaves: sum_tree.rebuild(sum_tree.init(capacity), leaves))(leaves)
    fed = loops.inputs(jax.random.key(0), batch_size)
    return loops.Loop(step, loops.start(tree), fed, capacity)
