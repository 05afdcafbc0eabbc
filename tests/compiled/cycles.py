"""Cycles of every method, compiled for a GPU and a TPU, and the table of their launches.

`python -m tests.compiled.cycles` compiles all of them (an hour) and rewrites `cycles.json`; names
of methods after it restrict it to these.
"""

import argparse
import itertools
import json
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxreplay import Replay, Transition
from jaxreplay.methods import METHODS
from jaxreplay.testing import Cost, compiled_cost, with_goals
from tests.methods import short

TABLE = Path(__file__).with_name("cycles.json")
PLATFORMS = ("gpu", "tpu")
ORDERS = ("add-sample-update", "sample-update-add")
SEEDS = (1, 4)  # one seed, and several in one program
NAMES = tuple(
    f"{platform}/{method}/{order}/{seeds}"
    for platform, method, order, seeds in itertools.product(PLATFORMS, METHODS, ORDERS, SEEDS)
)
# XLA copies small arrays where it does not copy large ones. Only shapes are needed, no memory.
CAPACITY, BATCH, OBS, ACTION = 2**20, 256, 17, 6


def versions() -> dict[str, str]:
    """Return the versions of the compilers, on which the numbers depend."""
    return {name: metadata.version(name) for name in ("jax", "jax-cuda12-plugin", "libtpu")}


def cost(method: str, order: str, seeds: int, platform: str | None) -> Cost:
    """Compile a loop of cycles and return the cost of one, of all seeds together."""

    def train(keys):
        replay, row, example = _parts(method)
        step = _cycle(replay, row, order)

        def one(key):
            keys = jax.random.split(key, 100)
            return jax.lax.scan(step, (replay.init(key, example), jnp.zeros(())), keys)[0]

        return jax.vmap(one)(keys) if seeds > 1 else one(keys[0])

    return compiled_cost(train, jax.random.split(jax.random.key(0), seeds), platform=platform)


def _parts(method: str):
    replay = Replay(
        with_goals(short(method, 1_000_000)).sampler, capacity=CAPACITY, batch_size=BATCH
    )
    number, flag = jnp.zeros(()), jnp.zeros((), bool)
    obs = jnp.zeros(OBS)
    example = Transition(obs, jnp.zeros(ACTION), number, number, obs, flag, flag)
    return replay, jax.tree.map(lambda x: x[None], example), example


def _cycle(replay, row, order):
    def add(state, key):
        new = row._replace(obs=jax.random.normal(key, (1, OBS)), reward=jnp.ones(1))
        feedback = dict.fromkeys(replay.requires.feedback_of_new, new.reward)
        return replay.add(state, new, **feedback)

    def cycle(carry, key):
        state, seen = carry
        key_add, key_sample = jax.random.split(key)
        if order == "add-sample-update":
            state = add(state, key_add)
        batch = replay.sample(state, key_sample)
        feedback = batch.transition.reward * 0.1 + 0.3
        state = replay.update(state, batch, **dict.fromkeys(replay.requires.feedback, feedback))
        if order == "sample-update-add":
            state = add(state, key_add)
        read = sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(batch.transition))
        return (state, seen + read + batch.weights.sum()), None

    return cycle


def table() -> dict[str, dict[str, int]]:
    """Return the committed costs by name."""
    return json.loads(TABLE.read_text())["cycles"]


def measured(name: str) -> dict[str, int]:
    """Compile the cycle of a name; return its row of the table."""
    platform, method, order, seeds = name.split("/")
    found = cost(method, order, int(seeds), platform)
    row = {"launches": found.launches, "cycles": found.cycles, "copies": found.copies}
    return {field: value for field, value in row.items() if value}


def rewrite(methods: Collection[str], platforms: Collection[str]) -> None:
    """Compile cycles and rewrite their rows, after each so that it can be interrupted."""
    for name in NAMES:
        platform, method = name.split("/")[:2]
        if method in methods and platform in platforms:
            write({name: measured(name)})


def write(new: dict[str, dict[str, int]]) -> None:
    """Replace rows of the table."""
    rows = (table() if TABLE.exists() else {}) | new
    cycles = [f"    {json.dumps(name)}: {json.dumps(rows[name])}" for name in NAMES if name in rows]
    lines = ["{", f'  "versions": {json.dumps(versions())},', '  "cycles": {']
    TABLE.write_text("\n".join([*lines, ",\n".join(cycles), "  }", "}", ""]))
    print(new, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="all methods by default")
    parser.add_argument("--platforms", nargs="+", choices=PLATFORMS, default=PLATFORMS)
    args = parser.parse_args()
    if unknown := sorted(set(args.methods) - set(METHODS)):
        parser.error(f"unknown methods {', '.join(unknown)}: use {', '.join(METHODS)}")
    rewrite(args.methods or METHODS, args.platforms)
