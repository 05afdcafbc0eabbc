"""A Replay driven from Python with donated state: one jitted call per verb, or one for all.

And one for all in which state, batch and row are few arrays (`jaxreplay.loops.packed`).
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import loops
from experiments.benchmarks.peers.types import Drawn, Rows
from jaxreplay.loops import packed
from jaxreplay.replay import Replay
from jaxreplay.types import Array, Sample, Transition

Packed = packed.Packed
_KEYS = 2**12


class Dispatched:
    """A `peers.types.Buffer` around a Replay.

    Rows arrive as NumPy arrays, as from an environment on the host; batches stay on the device, as
    for a learner there. `sample` changes nothing that later calls need (at most a fence that
    compiled loops need), so the state it returns is dropped; an `update` that returns the state
    unchanged is not called at all.
    """

    def __init__(self, replay: Replay, state: Any = None) -> None:
        """Take over a replay's state, or begin with an empty replay."""
        if state is None:
            state = jax.jit(lambda: replay.init(jax.random.key(0), loops.example()))()
        self._replay, self.state = replay, state
        self._batch: Any = None
        self.keys = itertools.cycle(list(jax.random.split(jax.random.key(2), _KEYS)))
        self._sample = jax.jit(lambda state, key: replay.sample(state, key))
        batch_of = jax.eval_shape(self._sample, self.state, next(self.keys))
        errors_of = jax.ShapeDtypeStruct((replay.batch_size,), jnp.float32)
        self._ignores_updates = _unchanged(self._updated, self.state, batch_of, errors_of)
        self._add = jax.jit(replay.add, donate_argnums=0)
        self._update = jax.jit(self._updated, donate_argnums=0)
        self._one_call = jax.jit(self.one_turn, donate_argnums=0)

    def _updated(self, state: Any, batch: Sample, errors: Array) -> Any:
        return self._replay.update(state, batch, td_error=errors)

    def one_turn(
        self, state: Any, batch: Sample, errors: Array, row: Transition, key: Array
    ) -> tuple[Any, Sample]:
        """Update, add and sample: what `turn` compiles."""
        state = self._replay.add(self._updated(state, batch, errors), row)
        return state, self._replay.sample(state, key)

    def fill(self, rows: Rows) -> None:
        self.state = loops.fill(self._replay, loops.transitions(rows), len(rows.reward))

    def add(self, row: Rows) -> None:
        self.state = self._add(self.state, _transition(row))

    def sample(self) -> Sample:
        self._batch = self._sample(self.state, next(self.keys))
        return self._batch

    def update(self, batch: Sample, errors: Array) -> None:
        if not self._ignores_updates:
            self.state = self._update(self.state, batch, errors)

    def turn(self, row: Rows, errors: Array) -> Sample:
        """Do everything between two learning steps in one call.

        Update the latest batch, which has now been learnt from, add a row, and sample the next
        batch.
        """
        batch = self.sample() if self._batch is None else self._batch
        self.state, self._batch = self._one_call(
            self.state, batch, errors, _transition(row), next(self.keys)
        )
        return self._batch

    def errors(self, td_error: np.ndarray) -> Array:
        return jnp.asarray(td_error)

    def drawn(self, batch: Sample) -> Drawn:
        t = batch.transition
        rows = Rows(*(np.asarray(getattr(t, name)) for name in Rows._fields))
        return Drawn(np.asarray(batch.indices), rows, np.asarray(batch.weights))

    def wait(self) -> None:
        jax.block_until_ready((self.state, self._batch))


class DispatchedPacked:
    """One call between two learning steps that takes and returns few arrays.

    Batches stay packed: a learner unpacks them in its own compiled step.
    """

    def __init__(self, replay: Replay, state: Any = None) -> None:
        """Take over a replay's state, or begin with an empty replay."""
        plain = Dispatched(replay, state)
        batch, self._keys, self._turn = plain.sample(), plain.keys, plain.one_turn
        pack = jax.jit(lambda *trees: [packed.pack(tree) for tree in trees])
        self._state, self._batch = pack(plain.state, batch)
        self._one_call = jax.jit(self._packed_turn, donate_argnums=0)

    @property
    def state(self) -> Any:
        """The replay's state as it is."""
        return jax.jit(packed.unpack)(self._state)

    def _packed_turn(
        self,
        state: Packed,
        batch: Packed,
        errors: Array,
        row: Packed,
        key: Array,
    ) -> tuple[Packed, Packed]:
        state, batch, row = (packed.unpack(x) for x in (state, batch, row))
        state, batch = self._turn(state, batch, errors, row, key)
        return packed.pack(state), packed.pack(batch)

    def turn(self, row: Rows, errors: Any) -> Any:
        """Do what `Dispatched.turn` does; return the next batch packed."""
        self._state, self._batch = self._one_call(
            self._state, self._batch, errors, packed.pack(_transition(row)), next(self._keys)
        )
        return self._batch

    def errors(self, td_error: np.ndarray) -> Any:
        return jnp.asarray(td_error)

    def wait(self) -> None:
        jax.block_until_ready((self._state, self._batch))


class DispatchedNumpy(DispatchedPacked):
    """The same for a learner without JAX: NumPy arrays go in and come out."""

    def turn(self, row: Rows, errors: Any) -> Sample:
        """Do what `Dispatched.turn` does; return the next batch as views of its memory."""
        return packed.as_numpy(super().turn(row, errors))

    def errors(self, td_error: np.ndarray) -> Any:
        return td_error


_NO = np.zeros(1, bool)


def _transition(row: Rows) -> Transition:
    return Transition(*(np.asarray(field)[None] for field in row), first=_NO, last=_NO)


def _unchanged(function: Any, state: Any, *args: Any) -> bool:
    """Return whether a function returns the state that it is given, unchanged."""
    answers: list[bool] = []

    def traced(state: Any, *args: Any) -> Any:
        result = function(state, *args)
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(result), strict=True)
        answers.append(all(a is b for a, b in pairs))
        return result

    jax.eval_shape(traced, state, *args)
    return answers[0]
