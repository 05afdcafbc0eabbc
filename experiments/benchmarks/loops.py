"""Compiled loops around a Replay: its verbs, whole cycles, and train steps with a small critic.

A loop's length is an argument, so that slow and fast contenders can take turns of equal time. It
compiles to the same loop as `lax.scan`.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.peers.types import ACTION, OBS, Rows, endless_episode
from experiments.training.seeds import axes_of
from jaxreplay.replay import Replay
from jaxreplay.testing import large_copies
from jaxreplay.types import Array, Sample, Transition

ORDERS = ("add-sample-update", "sample-update-add")
VERBS = ("add", "sample", "update")
_ROWS, _BATCHES = 256, 16  # sizes of the pools that a loop cycles through
_KEYS = 2**14  # likewise; enough that rows drawn in one round have left the cache by the next
_FILLING = 2**16  # distinct rows, at most, that a replay is filled with


class Inputs(NamedTuple):
    """A loop's inputs: pools that are made beforehand, so that making them is not timed."""

    rows: Transition  # [_ROWS, 1, ...]
    keys: Array  # [_KEYS] for sampling
    noise: Array  # [_BATCHES, B] TD errors, before the batch's part is added
    batches: Any = ()  # [_BATCHES, ...] sampled batches, for updates alone


class Carry(NamedTuple):
    """The carry of a loop."""

    replay: Any
    params: Any  # of the critic; () where there is none
    seen: Array  # [] float32, depends on all that was read, so that no read is optimised away


Step = Callable[[Carry, Inputs, Array], Carry]  # with the cycle's number, [] int32
# params, batch, noise `[B]` -> params, TD errors `[B]`, something that depends on all of them
Learn = Callable[[Any, Sample, Array], tuple[Any, Array, Array]]


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
    """Draw a loop's inputs by JAX, so that under vmap every seed gets its own."""
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
    """Return the state of a full replay, to which rows were added one after the other."""
    rows = endless_episode(np.random.default_rng(0), min(replay.capacity, _FILLING))
    return fill(replay, transitions(rows), replay.capacity)


def fill(replay: Replay, rows: Transition, count: int) -> Any:
    """Return a new replay's state after `count` adds that cycle through `rows` `[n, 1, ...]`."""

    def run(state: Any, rows: Transition) -> Any:
        return jax.lax.fori_loop(0, count, lambda i, s: replay.add(s, at(rows, i)), state)

    empty = jax.jit(lambda: replay.init(jax.random.key(0), example()))()
    return jax.block_until_ready(jax.jit(run, donate_argnums=0)(empty, rows))


def at(pool: Any, number: Array) -> Any:
    """Return the entry of a pool `[n, ...]` for a cycle's number, modulo n."""
    first = jax.tree.leaves(pool)[0]
    return jax.tree.map(lambda x: x[number % first.shape[0]], pool)


def verb(replay: Replay, name: str) -> Step:
    """Return a step of one verb alone; "update" cycles through the batches of the inputs."""

    def step(carry: Carry, fed: Inputs, number: Array) -> Carry:
        state, seen = carry.replay, carry.seen
        if name == "add":
            state = replay.add(state, at(fed.rows, number))
        elif name == "sample":
            # The barrier makes everything depend on the cycle's number; without it XLA would move
            # what does not depend on the key out of the loop.
            state, number = jax.lax.optimization_barrier((state, number))
            batch = replay.sample(state, at(fed.keys, number))
            seen = seen + (_digest(batch) * batch.weights).sum()
        else:
            batch = at(fed.batches, number)
            state = replay.update(state, batch, td_error=at(fed.noise, number))
        return carry._replace(replay=state, seen=seen)

    return step


def cycle(replay: Replay, order: str) -> Step:
    """Return a step that adds a row, samples a batch and updates it, in one of `ORDERS`."""

    def learn(params: Any, batch: Sample, noise: Array) -> tuple[Any, Array, Array]:
        td_error = noise + 1e-6 * _digest(batch)
        # As in a learner: the loss depends on the weights, the TD errors do not.
        return params, td_error, (td_error * batch.weights).sum()

    return _cycle(replay, order, learn)


def train_step(replay: Replay, order: str) -> Step:
    """Return a step that also takes a gradient step of a small critic (`critic_params`)."""

    def learn(params: Any, batch: Sample, noise: Array) -> tuple[Any, Array, Array]:
        del noise  # a critic has TD errors of its own
        (_, td_error), grads = jax.value_and_grad(_critic_loss, has_aux=True)(params, batch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), td_error, td_error.sum()

    return _cycle(replay, order, learn)


def _cycle(replay: Replay, order: str, learn: Learn) -> Step:
    def step(carry: Carry, fed: Inputs, number: Array) -> Carry:
        state = carry.replay
        if order.startswith("add"):
            state = replay.add(state, at(fed.rows, number))
        batch = replay.sample(state, at(fed.keys, number))
        params, td_error, seen = learn(carry.params, batch, at(fed.noise, number))
        state = replay.update(state, batch, td_error=td_error)
        if order.endswith("add"):
            state = replay.add(state, at(fed.rows, number))
        return Carry(state, params, carry.seen + seen)

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
    """A compiled loop of a step over a replay, for one seed or for many at once.

    Attributes:
      carry: the state that one run hands to the next.
      copies: number of instructions in it that copy an array as large as the capacity.
    """

    def __init__(
        self, step: Step, carry: Carry, fed: Inputs, capacity: int, axes: Any = None
    ) -> None:
        """Compile the loop.

        Args:
          step: body of the loop.
          carry: carry before the first step; donated.
          fed: inputs; with `axes`, one set per seed.
          capacity: the replay's capacity.
          axes: for each leaf of the carry 0 if it has a seed axis, else None; or None for one seed.
        """

        def run(carry: Carry, fed: Inputs, start: Array, count: Array) -> Carry:
            return jax.lax.fori_loop(start, start + count, lambda i, c: step(c, fed, i), carry)

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
        """Run `count` steps; return the seconds that they took."""
        clocks = self._clocks(count)
        begin = time.perf_counter()
        self.carry = jax.block_until_ready(self._compiled(self.carry, self._fed, *clocks))
        self._clock += count
        return time.perf_counter() - begin


def with_batches(
    replay: Replay, carry: Carry, fed: Inputs, axes: Carry | None = None
) -> tuple[Carry, Inputs]:
    """Return the carry, which is donated, and the inputs with batches sampled from its replay."""

    def run(carry: Carry, fed: Inputs) -> tuple[Carry, Any]:
        batches = jax.lax.map(lambda key: replay.sample(carry.replay, key), fed.keys[:_BATCHES])
        return carry, batches

    if axes is not None:
        run = jax.vmap(run, in_axes=(axes, 0), out_axes=(axes, 0))
    carry, batches = jax.jit(run, donate_argnums=0)(carry, fed)
    return carry, fed._replace(batches=batches)


def start(state: Any) -> Carry:
    """Return the first carry of a loop over a replay in this state."""
    return Carry(state, critic_params(jax.random.key(0)), jnp.zeros(()))


def seed_axes(replay: Replay, step: Step) -> Carry:
    """Return which leaves of a step's carry differ between seeds (0 if so; None if shared).

    As in `jax.vmap(train)(keys)` of a whole run: clocks and cursors stay single.
    """

    def init(key: Array) -> Carry:
        return start(replay.init(key, example()))

    zero = jnp.zeros((), jnp.int32)
    return axes_of(init, lambda carry, key: step(carry, inputs(key, replay.batch_size), zero))


def over_seeds(carry: Carry, axes: Carry, seeds: int) -> Carry:
    """Return a carry for `seeds` seeds: leaves that differ between them are repeated `[S, ...]`."""
    leaves, treedef = jax.tree.flatten(carry)
    marks = treedef.flatten_up_to(axes)
    repeated = [
        jnp.copy(leaf) if mark is None else jnp.repeat(leaf[None], seeds, axis=0)
        for leaf, mark in zip(leaves, marks, strict=True)
    ]
    return treedef.unflatten(repeated)


def _digest(batch: Sample) -> Array:
    """Return `[B]` float32 that depends on every number of the rows."""
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
