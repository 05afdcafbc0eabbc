"""Compiled loops around a Replay: its verbs, whole cycles, and train steps with a small critic.

A loop's length is an argument, so that slow and fast contenders can take turns of equal time. It
compiles to the loop that `lax.scan` compiles to.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.hlo import large_copies
from experiments.benchmarks.peers.types import ACTION, OBS, Rows, endless_episode
from experiments.training.seeds import axes_of
from jaxreplay.types import Array, Replay, Sample, Transition

ORDERS = ("add-sample-update", "sample-update-add")
VERBS = ("add", "sample", "update")
_ROWS, _BATCHES = 256, 16  # that a loop takes in turn
_KEYS = 2**14  # likewise; so many that rows drawn by them are no longer in the cache a round later
_FILLING = 2**16  # rows that a replay is filled with, in turn


class Inputs(NamedTuple):
    """What a loop is fed, from pools so that making it is not timed."""

    rows: Transition  # [_ROWS, 1, ...]
    keys: Array  # [_KEYS] for sampling
    noise: Array  # [_BATCHES, B] TD errors but for what the batch adds
    batches: Any = ()  # [_BATCHES, ...] sampled ones, for updates alone


class Carry(NamedTuple):
    """What a loop carries."""

    replay: Any
    params: Any  # of the critic; () where there is none
    seen: Array  # [] float32, depends on everything that was read, lest reading be optimised away


Step = Callable[[Carry, Inputs, Array], Carry]  # with the cycle's number, [] int32


def transitions(rows: Rows) -> Transition:
    """Return rows `[n, ...]` as transitions of one environment, `[n, 1, ...]`."""
    no = jnp.zeros(rows.reward.shape, bool)
    stored = Transition(*map(jnp.asarray, rows), first=no, last=no)
    return jax.tree.map(lambda x: x[:, None], stored)


def example() -> Transition:
    """Return one unbatched transition."""
    rows = endless_episode(np.random.default_rng(0), 1)
    return jax.tree.map(lambda x: x[0, 0], transitions(rows))


def inputs(key: Array, batch_size: int) -> Inputs:
    """Draw what a loop is fed, by JAX: under vmap, every seed gets its own."""
    key_obs, key_action, key_rows, key_noise = jax.random.split(key, 4)
    obs = jax.random.normal(key_obs, (_ROWS, 1, OBS))
    action = jax.random.uniform(key_action, (_ROWS, 1, ACTION), minval=-1.0)
    scalar = obs[..., 0]
    over = scalar > 3.0  # now and then
    discount = jnp.where(over, 0.0, 0.99)
    next_obs = jnp.roll(obs, -1, axis=0)
    rows = Transition(obs, action, scalar, discount, next_obs, jnp.roll(over, 1, axis=0), over)
    noise = jax.random.normal(key_noise, (_BATCHES, batch_size))
    return Inputs(rows, jax.random.split(key_rows, _KEYS), noise)


def filled(replay: Replay) -> Any:
    """Return a replay that holds as many rows as its capacity, added one after the other."""
    rows = endless_episode(np.random.default_rng(0), min(replay.capacity, _FILLING))
    return fill(replay, transitions(rows), replay.capacity)


def fill(replay: Replay, rows: Transition, count: int) -> Any:
    """Return a new replay with so many rows added, those of `rows` `[n, 1, ...]` in turn."""

    def run(state: Any, rows: Transition) -> Any:
        return jax.lax.fori_loop(0, count, lambda i, s: replay.add(s, at(rows, i)), state)

    empty = jax.jit(lambda: replay.init(jax.random.key(0), example()))()
    return jax.block_until_ready(jax.jit(run, donate_argnums=0)(empty, rows))


def at(pool: Any, number: Array) -> Any:
    """Return one entry of a pool, `[n, ...]`, which are taken in turn."""
    first = jax.tree.leaves(pool)[0]
    return jax.tree.map(lambda x: x[number % first.shape[0]], pool)


def verb(replay: Replay, name: str) -> Step:
    """Return a step of one verb alone; "update" takes the batches that it is fed in turn."""

    def step(carry: Carry, fed: Inputs, number: Array) -> Carry:
        state, seen = carry.replay, carry.seen
        if name == "add":
            state = replay.add(state, at(fed.rows, number))
        elif name == "sample":
            # Behind a barrier with the clock, nothing is the same in every turn: else XLA would
            # take what does not depend on the key out of the loop.
            state, number = jax.lax.optimization_barrier((state, number))
            state, batch = replay.sample(state, at(fed.keys, number))
            seen = seen + (_digest(batch) * batch.weights).sum()
        else:
            batch = at(fed.batches, number)
            state = replay.update(state, batch, td_error=at(fed.noise, number))
        return carry._replace(replay=state, seen=seen)

    return step


def cycle(replay: Replay, order: str) -> Step:
    """Return a step that adds a row, samples a batch and updates it, in one of `ORDERS`."""

    def step(carry: Carry, fed: Inputs, number: Array) -> Carry:
        state = carry.replay
        if order.startswith("add"):
            state = replay.add(state, at(fed.rows, number))
        state, batch = replay.sample(state, at(fed.keys, number))
        td_error = at(fed.noise, number) + 1e-6 * _digest(batch)
        state = replay.update(state, batch, td_error=td_error)
        if order.endswith("add"):
            state = replay.add(state, at(fed.rows, number))
        # As in a learner: the loss depends on the weights, the TD errors do not.
        seen = carry.seen + (td_error * batch.weights).sum()
        return carry._replace(replay=state, seen=seen)

    return step


def train_step(replay: Replay, order: str) -> Step:
    """Return a step that also takes a gradient step of a small critic (`critic_params`)."""

    def step(carry: Carry, fed: Inputs, number: Array) -> Carry:
        state = carry.replay
        if order.startswith("add"):
            state = replay.add(state, at(fed.rows, number))
        state, batch = replay.sample(state, at(fed.keys, number))
        (_, td_error), grads = jax.value_and_grad(_critic_loss, has_aux=True)(carry.params, batch)
        params = jax.tree.map(lambda p, g: p - 1e-3 * g, carry.params, grads)
        state = replay.update(state, batch, td_error=td_error)
        if order.endswith("add"):
            state = replay.add(state, at(fed.rows, number))
        return Carry(state, params, carry.seen + td_error.sum())

    return step


def critic_params(key: Array) -> tuple[tuple[Array, Array], ...]:
    """Return weights and biases of a critic with two hidden layers of 64."""
    sizes = (OBS + ACTION, 64, 64, 1)
    keys = jax.random.split(key, len(sizes) - 1)
    return tuple(
        (jax.random.normal(k, (m, n)) * m**-0.5, jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    )


class Loop:
    """A compiled loop of a step over a replay, alone or for many seeds at once.

    Attributes:
      carry: what it carries from one run to the next.
      copies: instructions in it that copy something of the replay's capacity.
    """

    def __init__(
        self, step: Step, carry: Carry, fed: Inputs, capacity: int, axes: Any = None
    ) -> None:
        """Compile the loop.

        Args:
          step: of the loop.
          carry: before it; donated.
          fed: the inputs; with `axes`, one of each per seed.
          capacity: of the replay.
          axes: which leaves of the carry have a seed axis (0 and None); None: there are no seeds.
        """

        def run(carry: Carry, fed: Inputs, start: Array, count: Array) -> Carry:
            body = functools.partial(_turned, step, fed)
            return jax.lax.fori_loop(start, start + count, body, carry)

        if axes is not None:
            run = jax.vmap(run, in_axes=(axes, 0, None, None), out_axes=axes)
        self._clock = 0
        self.carry, self._fed = carry, fed
        lowered = jax.jit(run, donate_argnums=0).lower(carry, fed, *self._clocks(1))
        self._compiled = lowered.compile()
        self.copies = len(large_copies(self._compiled.as_text(), capacity))

    def _clocks(self, count: int) -> tuple[Array, Array]:
        return jnp.asarray(self._clock, jnp.int32), jnp.asarray(count, jnp.int32)

    def run(self, count: int) -> float:
        """Run so many steps; return seconds."""
        clocks = self._clocks(count)
        begin = time.perf_counter()
        self.carry = jax.block_until_ready(self._compiled(self.carry, self._fed, *clocks))
        self._clock += count
        return time.perf_counter() - begin


def with_batches(
    replay: Replay, carry: Carry, fed: Inputs, axes: Carry | None = None
) -> tuple[Carry, Inputs]:
    """Return the carry, which is donated, and the inputs with batches sampled from it."""

    def run(carry: Carry, fed: Inputs) -> tuple[Carry, Any]:
        state, batches = jax.lax.scan(replay.sample, carry.replay, fed.keys[:_BATCHES])
        return carry._replace(replay=state), batches

    if axes is not None:
        run = jax.vmap(run, in_axes=(axes, 0), out_axes=(axes, 0))
    carry, batches = jax.jit(run, donate_argnums=0)(carry, fed)
    return carry, fed._replace(batches=batches)


def start(state: Any) -> Carry:
    """Return what a loop over a replay in this state begins with."""
    return Carry(state, critic_params(jax.random.key(0)), jnp.zeros(()))


def seed_axes(replay: Replay, step: Step) -> Carry:
    """Return which leaves of a step's carry differ between seeds (0; None: they are shared).

    As in `jax.vmap(train)(keys)` of a whole run: clocks and cursors stay single.
    """

    def init(key: Array) -> Carry:
        return start(replay.init(key, example()))

    zero = jnp.zeros((), jnp.int32)
    return axes_of(init, lambda carry, key: step(carry, inputs(key, replay.batch_size), zero))


def over_seeds(carry: Carry, axes: Carry, seeds: int) -> Carry:
    """Return a carry for so many seeds: leaves that differ between them are repeated `[S, ...]`."""
    leaves, treedef = jax.tree.flatten(carry)
    marks = treedef.flatten_up_to(axes)
    repeated = [
        jnp.copy(leaf) if mark is None else jnp.repeat(leaf[None], seeds, axis=0)
        for leaf, mark in zip(leaves, marks, strict=True)
    ]
    return treedef.unflatten(repeated)


def _turned(step: Step, fed: Inputs, number: Array, carry: Carry) -> Carry:
    return step(carry, fed, number)


def _digest(batch: Sample) -> Array:
    """Return `[B]` float32 for which every number of the rows must have been read."""
    t = batch.transition
    return t.obs.sum(axis=1) + t.action.sum(axis=1) + t.next_obs.sum(axis=1) + t.reward + t.discount


def _critic_loss(params: Any, batch: Sample) -> tuple[Array, Array]:
    t = batch.transition
    target = t.reward + t.discount * _value(params, t.next_obs, t.action)
    td_error = jax.lax.stop_gradient(target) - _value(params, t.obs, t.action)
    return (batch.weights * td_error**2).mean(), td_error


def _value(params: Any, obs: Array, action: Array) -> Array:
    x = jnp.concatenate([obs, action], axis=1)
    *hidden, (last, bias) = params
    for matrix, offset in hidden:
        x = jax.nn.relu(x @ matrix + offset)
    return (x @ last + bias)[:, 0]
