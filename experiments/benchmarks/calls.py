"""Replays called from Python with donated states: one call per function, or one per cycle."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import loops
from experiments.benchmarks.peers import Buffer, Rows, endless_episode, row
from experiments.benchmarks.timing import Run, timed
from jaxreplay.replay import Replay
from jaxreplay.types import Array, Sample, Transition

_KEYS = 2**12
_POOL = 64  # distinct transitions, and sets of TD errors, in a loop


class Called(Buffer):
    """A replay with one jitted call per function.

    Transitions are NumPy arrays, as from an environment on the host; batches stay on the device.
    The state that `sample` returns is dropped, since it differs only in a fence for compiled loops.
    """

    def __init__(self, replay: Replay, updates: bool = True) -> None:
        """Begin with an empty replay; without `updates`, `update` does nothing."""
        self.replay, self._updates, self._batch = replay, updates, None
        self.state = jax.jit(lambda: replay.init(jax.random.key(0), loops.example()))()
        self.keys = itertools.cycle(list(jax.random.split(jax.random.key(2), _KEYS)))
        self._sample = jax.jit(replay.sample)
        self._add = jax.jit(replay.add, donate_argnums=0)
        self._update = jax.jit(
            lambda state, batch, errors: replay.update(state, batch, td_error=errors),
            donate_argnums=0,
        )

    def fill(self, rows: Rows) -> None:
        self.state = loops.fill(self.replay, rows, len(rows.reward))

    def add(self, row: Rows) -> None:
        self.state = self._add(self.state, _transition(row))

    def sample(self) -> Sample:
        self._batch = self._sample(self.state, next(self.keys))
        return self._batch

    def update(self, batch: Sample, errors: Array) -> None:
        if self._updates:
            self.state = self._update(self.state, batch, errors)

    def errors(self, td_error: np.ndarray) -> Array:
        return jnp.asarray(td_error)

    def wait(self) -> None:
        jax.block_until_ready((self.state, self._batch))


class OneCall:
    """Everything between two learning steps in one call: update, add, and sample the next batch."""

    def __init__(self, called: Called) -> None:
        """Continue from a filled replay, whose state is donated."""
        replay, self._keys = called.replay, called.keys

        def cycle(state: Any, batch: Any, errors: Array, row: Any, key: Array) -> tuple[Any, Any]:
            state = replay.add(replay.update(state, batch, td_error=errors), row)
            return state, replay.sample(state, key)

        self._cycle = jax.jit(cycle, donate_argnums=0)
        self.state, self.batch = called.state, called.sample()

    def run(self, row: Rows, errors: Array) -> Any:
        """Update the latest batch, add a transition and return the next batch."""
        self.state, self.batch = self._cycle(
            self.state, self.batch, errors, _transition(row), next(self._keys)
        )
        return self.batch

    def wait(self) -> None:
        """Return when all calls have finished."""
        jax.block_until_ready((self.state, self.batch))


def one_call_per_function(buffer: Buffer, batch_size: int, order: str) -> Run:
    """Return a loop in Python over the functions of a buffer, in this order."""
    rows, errors = _pools(buffer, batch_size)
    batch = buffer.sample()

    def cycle(at: int) -> None:
        nonlocal batch
        for function in order.split("-"):
            if function == "add":
                buffer.add(rows[at])
            elif function == "sample":
                batch = buffer.sample()
            else:
                buffer.update(batch, errors[at])

    return _looped(cycle, buffer)


def one_call_per_cycle(called: Called, batch_size: int) -> Run:
    """Return a loop in Python over whole cycles."""
    rows, errors = _pools(called, batch_size)
    call = OneCall(called)
    return _looped(lambda at: call.run(rows[at], errors[at]), call)


def _looped(cycle: Callable[[int], Any], buffer: Buffer | OneCall) -> Run:
    def cycles(count: int) -> None:
        for number in range(count):
            cycle(number % _POOL)
        buffer.wait()

    return timed(cycles)


def _pools(buffer: Buffer, batch_size: int) -> tuple[Sequence[Rows], Sequence[Any]]:
    """Return transitions and TD errors for a loop in Python."""
    rng = np.random.default_rng(1)
    rows = endless_episode(rng, _POOL)
    noise = rng.standard_normal((_POOL, batch_size), np.float32)
    return [row(rows, number) for number in range(_POOL)], [buffer.errors(x) for x in noise]


def _transition(row: Rows) -> Transition:
    no = np.zeros(1, bool)
    return Transition(*(np.asarray(field)[None] for field in row), first=no, last=no)
