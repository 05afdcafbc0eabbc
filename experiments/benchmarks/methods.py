"""Time our replay methods against one another: `python -m experiments.benchmarks.methods`.

One cycle adds a row, samples a batch and updates it, in a compiled loop. Methods take turns within
one process, so that other load on the machine affects them alike; times are medians over the turns.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks import outputs
from experiments.benchmarks.peers.types import ACTION, OBS
from experiments.benchmarks.sizes import read_sizes
from experiments.runs.log import say
from jaxreplay import Replay, Transition
from jaxreplay.methods import METHODS, pser
from jaxreplay.sampler import Sampler
from jaxreplay.types import Array

_EPISODE = 200  # rows
SIZES = {
    "capacity": (2**20, "slots"),
    "batch_size": (256, "transitions in a batch"),
    "cycles": (2_000, "cycles in a turn"),
    "turns": (7, "turns of each method"),
}


def samplers() -> Mapping[str, Sampler]:
    """Return the samplers to time, by name; the others are compared with the first."""
    by_default = {
        name: METHODS[name].method(METHODS[name].config().for_run(1_000_000)).sampler
        for name in ("per", "uniform", "lap", "ere", "ero", "ners", "refer", "rank")
    }
    return by_default | {
        "pser, 5 steps back": pser.sampler(pser.PSERConfig(window=5)),
        "pser, 5 steps back, add": pser.sampler(pser.PSERConfig(window=5, combine="add")),
    }


def cycle(sampler: Sampler, capacity: int, batch_size: int, cycles: int) -> Callable[[], float]:
    """Fill a replay and return a function that runs `cycles` cycles and returns seconds."""
    replay = Replay(sampler, capacity=capacity, batch_size=batch_size)
    scalar, flag = jnp.zeros(()), jnp.zeros((), bool)
    example = Transition(
        jnp.zeros(OBS), jnp.zeros(ACTION), scalar, scalar, jnp.zeros(OBS), flag, flag
    )
    row = jax.tree.map(lambda x: x[None], example)

    def add(number: Array, state: Any) -> Any:
        edge = (number % _EPISODE == 0)[None]
        return replay.add(state, row._replace(reward=number[None] * 1e-6, first=edge, last=edge))

    def once(state: Any, number: Array) -> tuple[Any, Array]:
        state = add(number, state)
        key = jax.random.fold_in(jax.random.key(0), number)
        batch = replay.sample(state, key)
        td = batch.transition.reward + jax.random.normal(key, (batch_size,))
        return replay.update(
            state, batch, td_error=td, target=td, log_ratio=td
        ), batch.weights.sum()

    def fill(key: Array) -> Any:
        return jax.lax.fori_loop(0, capacity, add, replay.init(key, example))

    run = jax.jit(
        lambda state, start: jax.lax.scan(once, state, start + jnp.arange(cycles)), donate_argnums=0
    )
    state, clock = jax.block_until_ready(jax.jit(fill)(jax.random.key(1))), 0

    def timed() -> float:
        nonlocal state, clock
        start = time.perf_counter()
        state, _ = jax.block_until_ready(run(state, clock))
        clock += cycles
        return time.perf_counter() - start

    timed()  # compiles, and sets the priorities
    return timed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    sizes, out = read_sizes("methods", __doc__, SIZES, argv)
    capacity, batch_size, cycles, turns = sizes.values()
    timed = {}
    for name, sampler in samplers().items():
        say(f"{name}: filling and compiling")
        timed[name] = cycle(sampler, capacity, batch_size, cycles)
    times: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(turns):
        say(f"turn {turn + 1} of {turns}")
        for name, function in timed.items():
            times[name].append(function() / cycles * 1e6)
    medians = {name: statistics.median(values) for name, values in times.items()}
    reference = medians[next(iter(medians))]
    print(f"| {'method':<26} | us per cycle | ratio to per |")
    print(f"| {'-' * 26} | -----------: | -----------: |")
    for name, median in medians.items():
        print(f"| {name:<26} | {median:12.1f} | {median / reference:12.2f} |")
    numbers = {name: {"median_us": medians[name], "us": times[name]} for name in times}
    outputs.write(out, {**sizes, "methods": numbers})
    return 0


if __name__ == "__main__":
    sys.exit(main())
