"""Time the sampling of stored frames: `python -m experiments.benchmarks.frames`.

Each frame is stored once. A replay of Atari observations (84 x 84 bytes, stacks of 4) is filled
with episodes; batches are dispatched from Python and waited for, which is what a loop on the host
pays per gradient step. Frames on the device take turns with frames on the host, where the time
includes reading them and moving them to the device.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import outputs
from experiments.benchmarks.sizes import read_sizes
from experiments.runs.log import say
from experiments.training import host_store
from jaxreplay import Frames, Replay, Transition
from jaxreplay.methods import METHODS

_STACK, _EPISODE = 4, 500  # frames, agent steps
_METHODS = ("uniform", "per")
SIZES = {
    "capacity": (100_000, "transitions"),
    "batch_size": (32, "transitions in a batch"),
    "n_step": (3, "agent steps in a transition"),
    "samples": (300, "batches in a turn"),
    "turns": (7, "turns of each replay"),
}


def sampler(
    method: str, capacity: int, batch_size: int, n_step: int, on_host: bool
) -> tuple[Callable[[int], float], float]:
    """Fill a replay, and return how to time its sampling.

    Returns:
      A function that samples a number of batches and returns the seconds that it took; and the
      bytes of the replay's state and its frames.
    """
    replay = Replay(
        METHODS[method].method(METHODS[method].config().for_run(1_000_000)).sampler,
        capacity=capacity, batch_size=batch_size, storage=Frames(stack=_STACK, on_host=on_host),
    )  # fmt: skip
    obs = jnp.zeros((84, 84, _STACK), jnp.uint8)
    scalar, flag = jnp.zeros(()), jnp.zeros((), bool)
    example = Transition(obs, jnp.zeros((), jnp.int32), scalar, scalar, obs, flag, flag)
    row = jax.tree.map(lambda x: x[None], example)

    def add(number: jax.Array, state: Any) -> Any:
        step = number % _EPISODE
        frame = (number % 251).astype(jnp.uint8)
        age = jnp.minimum(step, _STACK - 1)
        shown = jnp.where(jnp.arange(_STACK) >= _STACK - 1 - age, frame, jnp.uint8(0))
        stack = jnp.broadcast_to(shown, row.obs.shape)
        return replay.add(
            state,
            row._replace(
                obs=stack, next_obs=stack, first=(step == 0)[None],
                last=(step == _EPISODE - 1)[None], n_steps=jnp.full(1, n_step, jnp.int32),
            ),
        )  # fmt: skip

    fill = jax.jit(lambda key: jax.lax.fori_loop(0, capacity, add, replay.init(key, example)))
    state = jax.block_until_ready(fill(jax.random.key(0)))
    sample = jax.jit(replay.sample)
    store, size = host_store.store_of(state.ring, 1), _bytes(state)
    if store.kept:
        store.kept.pixels[:] = 1  # pages that were never written would be read too fast
        size += store.kept.pixels.nbytes
    keys = list(jax.random.split(jax.random.key(1), 1_000))  # indexing an array takes longer

    def timed(count: int) -> float:
        start = time.perf_counter()
        for number in range(count):
            batch = sample(state, keys[number % len(keys)])
            if store.kept:
                one = jax.tree.map(lambda x: np.asarray(x)[None], batch)
                batch = jax.device_put(store.read(one))
            jax.block_until_ready(batch)
        return time.perf_counter() - start

    timed(5)
    return timed, size


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    sizes, out = read_sizes("frames", __doc__, SIZES, argv)
    capacity, batch_size, n_step, samples, turns = sizes.values()
    timed, numbers = {}, {}
    for method in _METHODS:
        for where in ("device", "host"):
            name = f"{method}, frames on the {where}"
            say(f"{name}: filling")
            timed[name], size = sampler(method, capacity, batch_size, n_step, where == "host")
            numbers[name] = {"bytes": size, "us": []}
    for turn in range(turns):
        say(f"turn {turn + 1} of {turns}")
        for name, run in timed.items():
            numbers[name]["us"].append(run(samples) / samples * 1e6)
    what = f"{batch_size} stacks of {capacity:,}"
    print(f"| {what} | us per sample | fastest turn | bytes per step |")
    print("| --- | ---: | ---: | ---: |")
    for name, entry in numbers.items():
        entry["median_us"] = statistics.median(entry["us"])
        per_step = entry["bytes"] / capacity
        print(f"| {name} | {entry['median_us']:.0f} | {min(entry['us']):.0f} | {per_step:.0f} |")
    outputs.write(out, {**sizes, "replays": numbers})
    return 0


if __name__ == "__main__":
    sys.exit(main())
