"""The same work in a compiled loop without any framework, by numba.

It has the same sum tree as ours (8 children to a node, repaired by recomputing whole nodes), one
draw in each of B equal ranges, importance weights, rows of one matrix copied into the batch, and
new priorities from the batch. All is float32, there are no branches within a node, and one word of
each cache line of the rows is read before they are copied.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from experiments.benchmarks.peers.types import (
    ACTION,
    ALPHA,
    BETA,
    EPSILON,
    OBS,
    Drawn,
    Peer,
    Rows,
    endless_episode,
)

_BRANCHING = 8
_WIDTH = OBS + ACTION + 1 + 1 + OBS
_POOL, _BATCHES = 256, 16  # rows, and batches for updates alone, that a run cycles through
_LINE = 16  # words in a cache line


class _State(NamedTuple):
    """The whole state, in arrays as numba needs it."""

    rows: np.ndarray  # [C, _WIDTH] float32
    nodes: np.ndarray  # [T] float32, level after level, the leaves first, the root last
    starts: np.ndarray  # [L + 1] int64, where in `nodes` each level begins
    counts: np.ndarray  # [2] int64: rows ever added, and the capacity
    largest: np.ndarray  # [1] float32, the largest leaf ever written
    indices: np.ndarray  # [B] int64, of the latest batch, like the next two
    batch: np.ndarray  # [B, _WIDTH] float32
    weights: np.ndarray  # [B] float32
    parents: np.ndarray  # [B] int64, scratch
    targets: np.ndarray  # [B] float32, scratch
    touched: np.ndarray  # [1] float32, sum of words that were read only to bring them into cache


@njit
def _repair(nodes, starts, parents):
    """Recompute every node above the leaves `parents` (overwritten)."""
    for level in range(len(starts) - 2):
        below, start = starts[level], starts[level + 1]
        size = starts[level + 2] - start
        if size <= len(parents):  # every node once, rather than some of them several times
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
    _repair(state.nodes, state.starts, state.parents[:1])


@njit
def _descend(nodes, starts, targets, leaves):
    """Find the leaves at which the running sum passes the targets, never one of value 0.

    It goes level by level, so that the CPU can overlap several walks.
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
    _repair(state.nodes, state.starts, state.parents)


@njit
def _feedback(state, noise, errors):
    """Compute TD errors from the whole batch, as the compiled loops of JAX do."""
    small = np.float32(1e-6)
    for i in range(len(errors)):
        total = np.float32(0)
        for column in range(_WIDTH):
            total += state.batch[i, column]
        errors[i] = noise[i] + small * total


@njit
def _run(state, verb, rows, noise, errors, pool, count):
    """Run a verb (0 add, 1 sample, 2 update, 3 and 4 a cycle that begins or ends with add)."""
    for number in range(count):
        at = number % _POOL
        if verb == 0 or verb == 3:
            _add(state, rows[at])
        if verb == 1 or verb >= 3:
            _sample(state)
        if verb >= 3:
            _feedback(state, noise[at], errors)
            _update(state, state.indices, errors)
        if verb == 2:
            _update(state, pool[number % _BATCHES], noise[at])
        if verb == 4:
            _add(state, rows[at])


_VERBS = {"add": 0, "sample": 1, "update": 2, "add-sample-update": 3, "sample-update-add": 4}


class _Loop:
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
        self._rows = _packed(endless_episode(rng, _POOL))
        self._noise = rng.standard_normal((_POOL, batch_size), np.float32)
        self._errors = np.zeros(batch_size, np.float32)
        self._pool = rng.integers(capacity, size=(_BATCHES, batch_size))

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

    def errors(self, td_error: np.ndarray) -> np.ndarray:
        return td_error

    def drawn(self, batch: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Drawn:
        indices, rows, weights = (array.copy() for array in batch)
        obs, action, reward, discount, next_obs = np.split(
            rows, np.cumsum([OBS, ACTION, 1, 1]), axis=1
        )
        return Drawn(indices, Rows(obs, action, reward[:, 0], discount[:, 0], next_obs), weights)

    def wait(self) -> None:
        pass

    def run(self, verb: str, count: int) -> None:
        _run(self._state, _VERBS[verb], self._rows, self._noise, self._errors, self._pool, count)


def _packed(rows: Rows) -> np.ndarray:
    parts = (rows.obs, rows.action, rows.reward[..., None], rows.discount[..., None], rows.next_obs)
    return np.concatenate(parts, axis=-1)


def peers() -> tuple[Peer, ...]:
    """Return the loop."""
    return (Peer("compiled loop (numba)", prioritised=True, compiled=_Loop),)
