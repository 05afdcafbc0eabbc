"""Time a replay with its rows on the host: `python -m experiments.benchmarks.rows`.

Rows of the size of MuJoCo's humanoid (observations of 376 numbers, 17 actions) are added and
sampled from Python, one add and one batch in a turn's cycle, which ends when the batch is on the
device. Then whole training loops: what `--replay-on host` costs where the environment compiles, and
the loop on the device is one program. Contenders take turns in one process.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import outputs
from experiments.benchmarks.sizes import read_sizes
from experiments.benchmarks.tables import table
from experiments.benchmarks.timing import Run, ratio, take_turns
from experiments.benchmarks.training_loops import CASES, as_run
from experiments.runs.log import say
from jaxreplay import Replay, Transition, Transitions
from jaxreplay.loops import host_rows
from jaxreplay.methods import METHODS

_OBS, _ACTION = 376, 17
_METHODS = ("uniform", "per")
_LOOPS = ("dqn", "sac")
_WHERE = ("device", "host")
SIZES = {
    "capacity": (100_000, "transitions"),
    "batch_size": (256, "transitions in a batch"),
    "turns": (7, "turns of each contender"),
    "milliseconds": (1_000, "of each turn"),
}


def cycles(method: str, capacity: int, batch_size: int, on_host: bool) -> tuple[Run, int, int]:
    """Fill a replay; return how to time cycles, and its bytes on the device and on the host."""
    replay = Replay(
        METHODS[method].method(METHODS[method].config().for_run(1_000_000)).sampler,
        capacity=capacity, batch_size=batch_size, storage=Transitions(on_host=on_host),
    )  # fmt: skip
    scalar, flag = jnp.zeros(()), jnp.zeros((), bool)
    obs, action = jnp.ones(_OBS), jnp.ones(_ACTION)
    example = Transition(obs, action, scalar, scalar, obs, flag, flag)
    row = jax.tree.map(lambda x: x[None], example)

    def fill(key: jax.Array) -> Any:
        state = replay.init(key, example)
        return jax.lax.fori_loop(0, capacity, lambda _, state: replay.add(state, row), state)

    def draw(state: Any, key: jax.Array) -> Any:
        state = replay.add(state, row)
        batch = replay.sample(state, key)
        return replay.after_reading(state, batch), batch

    state = jax.block_until_ready(jax.jit(fill)(jax.random.key(0)))
    draw = jax.jit(draw, donate_argnums=0)
    join = jax.jit(host_rows.join)
    rows = host_rows.empty(state.ring) if on_host else np.zeros(0)
    rows[:] = 1  # pages that were never written would be read too fast
    device = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    keys = list(jax.random.split(jax.random.key(1), 1_000))  # indexing an array takes longer

    def run(count: int) -> float:
        nonlocal state
        start = time.perf_counter()
        for number in range(count):
            state, batch = draw(state, keys[number % len(keys)])
            if on_host:
                host_rows.write(rows, state.ring.leaving)
                batch = join(state.ring, batch, host_rows.read(rows, batch.indices))
            jax.block_until_ready(batch)
        return time.perf_counter() - start

    return run, device, rows.nbytes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    sizes, out = read_sizes("rows", __doc__, SIZES, argv)
    capacity, batch_size, turns = (sizes[name] for name in ("capacity", "batch_size", "turns"))
    seconds = sizes["milliseconds"] / 1_000
    groups: dict[str, dict[str, Run]] = {}
    memory: dict[str, dict[str, int]] = {}
    for method in _METHODS:
        say(f"{method}: filling")
        name = f"{method}: add and sample {batch_size}"
        made = {where: cycles(method, capacity, batch_size, where == "host") for where in _WHERE}
        groups[name] = {where: run for where, (run, _, _) in made.items()}
        memory[name] = {f"{where}'s replay, on the device": made[where][1] for where in _WHERE}
        memory[name]["host's replay, on the host"] = made["host"][2]
    for agent in _LOOPS:
        say(f"{agent}: compiling")
        name = f"{agent} on {CASES[agent].env}, per"
        groups[name] = {
            where: as_run(CASES[agent], "per", 1, capacity, where).run for where in _WHERE
        }
    lines, numbers = [], {}
    for name, runs in groups.items():
        say(f"{name}: timing")
        times = take_turns(runs, turns, seconds)
        medians = [statistics.median(times[where]) for where in _WHERE]
        slower = ratio(times["host"], times["device"])
        lines.append([name, *medians, slower])
        numbers[name] = {"us": times, "ratio": slower, "bytes": memory.get(name)}
    print(table(["us per cycle or agent step", "on the device", "on the host", "ratio"], lines))
    outputs.write(out, {**sizes, "rows": numbers})
    return 0


if __name__ == "__main__":
    sys.exit(main())
