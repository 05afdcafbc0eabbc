"""Compiled loops of cycles, each of which adds a transition, samples a batch and updates it.

The length of a loop is an argument, so that slow and fast contenders can have turns of equal time.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.peers import ACTION, OBS, Rows, endless_episode
from experiments.training.seeds import axes_of
from jaxreplay.replay import Replay
from jaxreplay.testing import large_copies
from jaxreplay.types import Array, Sample, Transition

_ROWS, _BATCHES = 256, 16  # distinct transitions, and sets of TD errors, in a loop
_KEYS = 2**14  # distinct keys; drawn rows have left the cache before a key recurs
_FILLED_WITH = 2**16  # largest number of distinct transitions in a filled replay


class Inputs(NamedTuple):
    """Inputs of a loop, made in advance so that making them is not timed."""

    rows: Transition  # [_ROWS, 1, ...]
    keys: Array  # [_KEYS] for sampling
    noise: Array  # [_BATCHES, B] parts of TD errors that do not depend on the batch


class Carry(NamedTuple):
    """The carry of a loop."""

    replay: Any
    seen: Array  # [] float32, depends on everything that is read, to keep XLA from removing reads


Step = Callable[[Any, Any, Array], Any]  # carry, inputs, number of the cycle [] int32 -> carry


class Loop:
    """A compiled loop of a step, for one seed or vmapped over several."""

    def __init__(self, step: Step, carry: Any, inputs: Any, axes: Any = None) -> None:
        """Compile the loop.

        The carry is donated. With `axes`, which has 0 for each leaf of the carry with a seed axis
        and None for the others, the loop is vmapped, and `inputs` are those of each seed.
        """

        def run(carry: Any, inputs: Any, start: Array, count: Array) -> Any:
            return jax.lax.fori_loop(start, start + count, lambda i, c: step(c, inputs, i), carry)

        if axes is not None:
            run = jax.vmap(run, in_axes=(axes, 0, None, None), out_axes=axes)
        self._cycles, self._carry, self._inputs = 0, carry, inputs
        number = jax.ShapeDtypeStruct((), jnp.int32)
        lowered = jax.jit(run, donate_argnums=0).lower(carry, inputs, number, number)
        self._compiled = lowered.compile()

    def run(self, count: int) -> float:
        """Run `count` steps; return the seconds that they took."""
        limits = [jnp.asarray(number, jnp.int32) for number in (self._cycles, count)]
        begin = time.perf_counter()
        carry = self._compiled(self._carry, self._inputs, *limits)
        self._carry = jax.block_until_ready(carry)
        self._cycles += count
        return time.perf_counter() - begin

    def copies(self, capacity: int) -> int:
        """Return the number of instructions that copy an array of `capacity` rows per step."""
        return len(large_copies(self._compiled.as_text() or "", capacity))


def loop_of(replay: Replay, order: str, seeds: int | None = None) -> Loop:
    """Return a loop of cycles in one of `ORDERS` over a full replay.

    With `seeds`, the loop is vmapped over replays with the same contents. As in
    `jax.vmap(train)(keys)` of a whole run, step counters and write positions have no seed axis.
    """
    rows = endless_episode(np.random.default_rng(0), min(replay.capacity, _FILLED_WITH))
    step, carry = _cycle(replay, order), Carry(fill(replay, rows, replay.capacity), jnp.zeros(()))
    if seeds is None:
        return Loop(step, carry, _inputs(jax.random.key(0), replay.batch_size))
    zero = jnp.zeros((), jnp.int32)
    axes = axes_of(
        lambda key: Carry(replay.init(key, example()), jnp.zeros(())),
        lambda carry, key: step(carry, _inputs(key, replay.batch_size), zero),
    )
    leaves, treedef = jax.tree.flatten(carry)
    repeated = [
        leaf if axis is None else jnp.repeat(leaf[None], seeds, axis=0)
        for leaf, axis in zip(leaves, treedef.flatten_up_to(axes), strict=True)
    ]
    keys = jax.random.split(jax.random.key(0), seeds)
    inputs = jax.vmap(lambda key: _inputs(key, replay.batch_size))(keys)
    return Loop(step, treedef.unflatten(repeated), inputs, axes)


def fill(replay: Replay, rows: Rows, count: int) -> Any:
    """Return the state after `count` adds that cycle through `rows` `[n, ...]`."""

    def run(state: Any, rows: Transition) -> Any:
        return jax.lax.fori_loop(0, count, lambda i, s: replay.add(s, _at(rows, i)), state)

    empty = jax.jit(lambda: replay.init(jax.random.key(0), example()))()
    return jax.block_until_ready(jax.jit(run, donate_argnums=0)(empty, _transitions(rows)))


def example() -> Transition:
    """Return one unbatched transition."""
    rows = endless_episode(np.random.default_rng(0), 1)
    return jax.tree.map(lambda x: x[0, 0], _transitions(rows))


def _cycle(replay: Replay, order: str) -> Step:
    def step(carry: Carry, inputs: Inputs, number: Array) -> Carry:
        state = carry.replay
        if order.startswith("add"):
            state = replay.add(state, _at(inputs.rows, number))
        batch = replay.sample(state, _at(inputs.keys, number))
        # As in a learner, the loss depends on the weights, and TD errors do not.
        td_error = _at(inputs.noise, number) + 1e-6 * _sum_of(batch)
        seen = carry.seen + (td_error * batch.weights).sum()
        state = replay.update(state, batch, td_error=td_error)
        if order.endswith("add"):
            state = replay.add(state, _at(inputs.rows, number))
        return Carry(state, seen)

    return step


def _sum_of(batch: Sample) -> Array:
    """Return `[B]` float32 that depends on every number of the transitions."""
    t = batch.transition
    return t.obs.sum(axis=1) + t.action.sum(axis=1) + t.next_obs.sum(axis=1) + t.reward + t.discount


def _inputs(key: Array, batch_size: int) -> Inputs:
    """Draw inputs with JAX, so that under vmap each seed has its own."""
    key_obs, key_action, key_rows, key_noise = jax.random.split(key, 4)
    obs = jax.random.normal(key_obs, (_ROWS, 1, OBS))
    action = jax.random.uniform(key_action, (_ROWS, 1, ACTION), minval=-1.0)
    reward = obs[..., 0]
    last = reward > 3.0  # rarely
    discount = jnp.where(last, 0.0, 0.99)
    next_obs = jnp.roll(obs, -1, axis=0)
    rows = Transition(obs, action, reward, discount, next_obs, jnp.roll(last, 1, axis=0), last)
    noise = jax.random.normal(key_noise, (_BATCHES, batch_size))
    return Inputs(rows, jax.random.split(key_rows, _KEYS), noise)


def _transitions(rows: Rows) -> Transition:
    """Return rows `[n, ...]` as transitions of one environment, `[n, 1, ...]`."""
    no = jnp.zeros(rows.reward.shape, bool)
    stored = Transition(*map(jnp.asarray, rows), first=no, last=no)
    return jax.tree.map(lambda x: x[:, None], stored)


def _at(pool: Any, number: Array) -> Any:
    """Return the entry of a pool `[n, ...]` for a cycle's number, modulo n."""
    size = jax.tree.leaves(pool)[0].shape[0]
    return jax.tree.map(lambda x: x[number % size], pool)
