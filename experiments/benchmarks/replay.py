"""Time the cycle of a replay: `python -m experiments.benchmarks.replay`.

A cycle calls `add`, `sample` and `update` once, in a compiled loop over a full replay.
Contenders are replay methods and, if the package is installed (`make bench`), the buffers of
flashbax; ratios are relative to the first contender. Large copies are the instructions in the loop
that copy a whole array of the replay.
"""

import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks import command, timing
from experiments.environments.extras import lacking_extra
from experiments.runs.log import say
from jaxreplay import Replay
from jaxreplay.methods import METHODS
from jaxreplay.option import option
from jaxreplay.testing import large_copies
from jaxreplay.types import FEEDBACK, Array, Transition

ORDERS = ("add-sample-update", "sample-update-add")
FLASHBAX = MappingProxyType({"flashbax": "prioritised", "flashbax-uniform": "uniform"})
# These methods replay sequences, relabelled goals, or candidates that an agent scores.
_OTHER_BATCHES = {"sequences", "slices", "windows", "latest", "her", "laber"}
CONTENDERS = (*(name for name in METHODS if name not in _OTHER_BATCHES), *FLASHBAX)
_OBS, _ACTION = 17, 6  # sizes of a locomotion task
_EPISODE = 256  # transitions
_POOL = 2**14  # distinct transitions, and keys: drawn rows have left the cache before a key recurs
_FEEDBACKS = 16  # distinct sets of TD errors


@dataclasses.dataclass(frozen=True)
class Settings(command.TimedSettings):
    """Cycles to time."""

    contenders: tuple[str, ...] = option(
        ("per", "uniform"), "replays to time, the reference first", choices=CONTENDERS
    )
    capacities: tuple[int, ...] = option((2**20,), "slots", at_least=1)
    batch_sizes: tuple[int, ...] = option((256,), "transitions per batch", at_least=1)
    orders: tuple[str, ...] = option(ORDERS[:1], "orders of a cycle", choices=ORDERS)
    seeds: int = option(1, "replays in one compiled program, vmapped if several", at_least=1)

    def check(self) -> None:
        """Raise ValueError for a batch above the capacity, or if flashbax is not installed."""
        batch_size, capacity = max(self.batch_sizes), min(self.capacities)
        if batch_size > capacity:
            raise ValueError(f"batch_sizes: {batch_size} exceeds the capacity {capacity}")
        for name in set(self.contenders) & set(FLASHBAX):
            if lacks := lacking_extra(f"contender {name}", {"flashbax": "bench"}):
                raise ValueError(lacks)


class Inputs(NamedTuple):
    """Inputs of a loop, made in advance so that making them is not timed."""

    rows: Transition  # [_POOL, 1, ...]
    keys: Array  # [_POOL] for sampling
    noise: Array  # [_FEEDBACKS, B] parts of TD errors that do not depend on the batch


class Cycles:
    """A compiled loop of cycles over full replays; its length is an argument."""

    def __init__(self, replay: Any, order: str, seeds: int = 1) -> None:
        """Fill the replays and compile the loop.

        Args:
          replay: a Replay, or an object with the same functions.
          order: one of ORDERS.
          seeds: number of replays, over which the cycle is vmapped if there are several.
        """
        several = seeds > 1
        offsets = jnp.arange(seeds) * (_POOL // seeds) if several else jnp.zeros((), jnp.int32)

        def fill(rows: Transition) -> Any:
            empty = replay.init(jax.random.key(0), jax.tree.map(lambda x: x[0, 0], rows))
            add = lambda number, state: replay.add(state, at(rows, number))  # noqa: E731
            return jax.lax.fori_loop(0, replay.capacity, add, empty), jnp.zeros(())

        def loop(carry: Any, inputs: Inputs, start: Array, count: Array) -> Any:
            def one(carry: Any, number: Array) -> Any:
                return cycle(replay, order, carry, at(inputs, number))

            step = jax.vmap(one) if several else one
            return jax.lax.fori_loop(start, start + count, lambda n, x: step(x, n + offsets), carry)

        self._inputs, self._done = make_inputs(replay.batch_size), 0
        fills = jax.vmap(fill, in_axes=None, axis_size=seeds) if several else fill
        self._carry = jax.jit(fills)(self._inputs.rows)
        number = jax.ShapeDtypeStruct((), jnp.int32)
        lowered = jax.jit(loop, donate_argnums=0).lower(self._carry, self._inputs, number, number)
        self._loop = lowered.compile()
        text = self._loop.as_text() or ""
        self.large_copies = len(large_copies(text, replay.capacity, 128))  # trees have rows of 128

    def run(self, count: int) -> float:
        """Run `count` cycles; return their seconds."""
        limits = [jnp.asarray(number, jnp.int32) for number in (self._done, count)]
        seconds, self._carry = timing.seconds_of(self._loop, self._carry, self._inputs, *limits)
        self._done += count
        return seconds


def make_replay(name: str, capacity: int, batch_size: int, platform: str | None = None) -> Any:
    """Return the replay of a contender, with the functions of a Replay.

    `platform` is the platform of the compiled programs, which flashbax has to know; None means the
    default platform.
    """
    if name in FLASHBAX:
        from experiments.benchmarks import flashbax  # of an optional package

        return getattr(flashbax, FLASHBAX[name])(capacity, batch_size, platform)
    method = METHODS[name]
    sampler = method.method(method.config().for_run(1_000_000)).sampler
    return Replay(sampler, capacity=capacity, batch_size=batch_size)


def make_inputs(batch_size: int) -> Inputs:
    """Draw the inputs of a loop: transitions of episodes, keys and noise."""
    key_obs, key_action, key_sample, key_noise = jax.random.split(jax.random.key(0), 4)
    obs = jax.random.normal(key_obs, (_POOL, 1, _OBS))
    action = jax.random.uniform(key_action, (_POOL, 1, _ACTION), minval=-1.0)
    number = jnp.arange(_POOL)[:, None]
    first, last = number % _EPISODE == 0, number % _EPISODE == _EPISODE - 1
    rows = Transition(
        obs, action, reward=number.astype(jnp.float32), discount=jnp.where(last, 0.0, 0.99),
        next_obs=jnp.roll(obs, -1, axis=0), first=first, last=last,
    )  # fmt: skip
    noise = jax.random.normal(key_noise, (_FEEDBACKS, batch_size))
    return Inputs(rows, jax.random.split(key_sample, _POOL), noise)


def cycle(replay: Any, order: str, carry: Any, inputs: Inputs) -> Any:
    """Run a cycle; return the replay's state, and a number that depends on everything it reads.

    Without the number, XLA would remove the reads. `inputs` are the inputs of this cycle.
    """
    state, seen = carry
    if order.startswith("add"):
        state = replay.add(state, inputs.rows)
    batch = replay.sample(state, inputs.keys)
    row = batch.transition
    read = row.obs.sum(1) + row.action.sum(1) + row.next_obs.sum(1) + row.reward + row.discount
    td_error = inputs.noise + 1e-6 * read
    seen += (td_error * batch.weights).sum()  # the loss depends on the weights, TD errors do not
    state = replay.update(state, batch, **dict.fromkeys(FEEDBACK, td_error))
    if order.endswith("add"):
        state = replay.add(state, inputs.rows)
    return state, seen


def at(inputs: Any, number: Array | int) -> Any:
    """Return the inputs of cycle `number`: element `number % n` of each array `[n, ...]`."""
    return jax.tree.map(lambda x: x[number % len(x)], inputs)


def measure(capacity: int, batch_size: int, order: str, settings: Settings) -> list[command.Row]:
    """Fill the replays and time them in turns, in microseconds per cycle."""
    loops: dict[str, Cycles] = {}
    for name in settings.contenders:
        say(f"  filling {name}")
        loops[name] = Cycles(make_replay(name, capacity, batch_size), order, settings.seeds)
    runs = {name: loop.run for name, loop in loops.items()}
    times = timing.compare(runs, settings.turns, settings.seconds)
    sizes: Mapping[str, Any] = {"capacity": capacity, "batch_size": batch_size, "order": order}
    return [
        {"contender": name, **sizes, **times[name], "large_copies": loop.large_copies}
        for name, loop in loops.items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    settings, out = command.read("replay", __doc__, Settings(), argv)
    results: list[command.Row] = []
    for sizes in itertools.product(settings.capacities, settings.batch_sizes, settings.orders):
        say("{:,} slots, batches of {:,}, {}".format(*sizes))
        rows = measure(*sizes, settings)
        command.show_table(rows)
        results += rows
        command.write(out, dataclasses.asdict(settings), results)  # after every table: all are slow
    return 0


if __name__ == "__main__":
    sys.exit(main())
