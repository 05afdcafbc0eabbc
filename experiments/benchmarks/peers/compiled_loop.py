"""The same computation in a loop compiled by numba, without a framework.

It has the same sum tree as ours (8 children per node, updated by recomputing whole nodes),
stratified draws, importance weights, transitions copied from the rows of one matrix into the batch,
and new priorities from the batch, all in float32. There are no branches within a node, and one word
of each cache line of the rows is read before they are copied.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from experiments.benchmarks.peers import types
from experiments.benchmarks.peers.types import ACTION, ALPHA, BETA, EPSILON, OBS, Peer, Rows

_BRANCHING = 8
_WIDTH = OBS + ACTION + 1 + 1 + OBS
_POOL = 256  # distinct rows, and sets of TD errors, in a run
_LINE = 16  # words in a cache line


class _State(NamedTuple):
    """The state as arrays, as numba requires."""

    rows: np.ndarray  # [C, _WIDTH] float32
    nodes: np.ndarray  # [T] float32, level by level from the leaves to the root
    starts: np.ndarray  # [L + 1] int64, offsets of the levels in `nodes`
    counts: np.ndarray  # [2] int64: rows added so far, and the capacity
    largest: np.ndarray  # [1] float32, the largest leaf so far
    indices: np.ndarray  # [B] int64, of the latest batch, as the next two
    batch: np.ndarray  # [B, _WIDTH] float32
    weights: np.ndarray  # [B] float32
    parents: np.ndarray  # [B] int64, scratch
    targets: np.ndarray  # [B] float32, scratch
    touched: np.ndarray  # [1] float32, sum of the words read to load cache lines


@njit
def _update_parents(nodes, starts, parents):
    """Recompute every node above the leaves `parents` (overwritten)."""
    for level in range(len(starts) - 2):
        below, start = starts[level], starts[level + 1]
        size = starts[level + 2] - start
        if size <= len(parents):  # each node once instead of some repeatedly
            for node in range(size):
                total = np.float32(0)
                for child in range(_BRANCHING):
                    at = below + node * _BRANCHING + child
                    if at < start:
                        total += nodes[at]
                nodes[start + node] = total
        else:
            for i in range(len(parents)):
                node = parents[i] // _BRANCHING
                parents[i] = node
                total = np.float32(0)
                for child in range(_BRANCHING):
                    total += nodes[below + node * _BRANCHING + child]
                nodes[start + node] = total


@njit
def _add(state, row):
    slot = state.counts[0] % state.counts[1]
    state.counts[0] += 1
    for column in range(_WIDTH):
        state.rows[slot, column] = row[column]
    state.nodes[slot] = state.largest[0]
    state.parents[0] = slot
    _update_parents(state.nodes, state.starts, state.parents[:1])


@njit
def _descend(nodes, starts, targets, leaves):
    """Find the leaves at which the cumulative sum exceeds the targets, none of value 0.

    All targets descend one level at a time, so that the CPU can overlap them.
    """
    leaves[:] = 0
    for level in range(len(starts) - 3, -1, -1):
        for i in range(len(leaves)):
            first, target = starts[level] + leaves[i] * _BRANCHING, targets[i]
            before, chosen, begin = np.float32(0), 0, np.float32(0)
            for child in range(_BRANCHING):
                value = nodes[first + child]
                here = (value > 0) & (before <= target)
                chosen = child if here else chosen
                begin = before if here else begin
                before += value
            targets[i] = target - begin
            leaves[i] = leaves[i] * _BRANCHING + chosen


@njit
def _sample(state):
    size = len(state.indices)
    total = state.nodes[-1]
    live = min(state.counts[0], state.counts[1])
    scale, step, exponent = np.float32(live) / total, total / np.float32(size), np.float32(-BETA)
    for i in range(size):
        state.targets[i] = (np.float32(i) + np.float32(np.random.random())) * step
    _descend(state.nodes, state.starts, state.targets, state.indices)
    largest, touched = np.float32(0), np.float32(0)
    for i in range(size):
        leaf = state.indices[i]
        touched += state.rows[leaf, _WIDTH - 1]
        for column in range(0, _WIDTH - 1, _LINE):
            touched += state.rows[leaf, column]
    state.touched[0] = touched
    for i in range(size):
        weight = (scale * state.nodes[state.indices[i]]) ** exponent
        state.weights[i] = weight
        largest = max(largest, weight)
    for i in range(size):
        state.weights[i] /= largest
        leaf = state.indices[i]
        for column in range(_WIDTH):
            state.batch[i, column] = state.rows[leaf, column]


@njit
def _update(state, indices, td_error):
    epsilon, exponent = np.float32(EPSILON), np.float32(ALPHA)
    for i in range(len(indices)):
        leaf = (abs(td_error[i]) + epsilon) ** exponent
        state.nodes[indices[i]] = leaf
        state.largest[0] = max(state.largest[0], leaf)
        state.parents[i] = indices[i]
    _update_parents(state.nodes, state.starts, state.parents)


@njit
def _run(state, add_first, rows, noise, errors, count):
    """Run cycles that begin or end with `_add`."""
    for number in range(count):
        at = number % _POOL
        if add_first:
            _add(state, rows[at])
        _sample(state)
        for i in range(len(errors)):  # TD errors of the whole batch, as in the loops of JAX
            total = np.float32(0)
            for column in range(_WIDTH):
                total += state.batch[i, column]
            errors[i] = noise[at, i] + np.float32(1e-6) * total
        _update(state, state.indices, errors)
        if not add_first:
            _add(state, rows[at])


class _Loop(types.CompiledBuffer):
    def __init__(self, capacity: int, batch_size: int) -> None:
        sizes, size = [], capacity
        while size > 1 or not sizes:
            sizes.append(math.ceil(size / _BRANCHING) * _BRANCHING)
            size = math.ceil(size / _BRANCHING)
        starts = np.cumsum([0, *sizes, 1])
        self._state = _State(
            rows=np.zeros((capacity, _WIDTH), np.float32),
            nodes=np.zeros(starts[-1], np.float32),
            starts=starts,
            counts=np.array([0, capacity]),
            largest=np.ones(1, np.float32),
            indices=np.zeros(batch_size, np.int64),
            batch=np.zeros((batch_size, _WIDTH), np.float32),
            weights=np.zeros(batch_size, np.float32),
            parents=np.zeros(batch_size, np.int64),
            targets=np.zeros(batch_size, np.float32),
            touched=np.zeros(1, np.float32),
        )
        rng = np.random.default_rng(0)
        self._rows = _packed(types.endless_episode(rng, _POOL))
        self._noise = rng.standard_normal((_POOL, batch_size), np.float32)
        self._errors = np.zeros(batch_size, np.float32)

    def fill(self, rows: Rows) -> None:
        for packed in _packed(rows):
            _add(self._state, packed)

    def add(self, row: Rows) -> None:
        _add(self._state, _packed(row))

    def sample(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        _sample(self._state)
        return self._state.indices, self._state.batch, self._state.weights

    def update(self, batch: tuple[np.ndarray, ...], errors: np.ndarray) -> None:
        _update(self._state, batch[0], errors)

    def run(self, order: str, count: int) -> None:
        first = order == types.ORDERS[0]
        _run(self._state, first, self._rows, self._noise, self._errors, count)


def _packed(rows: Rows) -> np.ndarray:
    parts = (rows.obs, rows.action, rows.reward[..., None], rows.discount[..., None], rows.next_obs)
    return np.concatenate(parts, axis=-1)


def peers() -> tuple[Peer, ...]:
    """Return the loop, prioritised."""
    return (Peer("compiled loop (numba)", prioritised=True, make=_Loop),)
