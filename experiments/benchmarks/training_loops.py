"""Whole training loops of this project, with the tasks and sizes that peers' loops share."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks.programs import Size, compile_run
from experiments.benchmarks.timing import Run
from experiments.runs.assembly import assemble, build
from experiments.runs.run_config import RunConfig, defaults
from experiments.training.config import LoopConfig, ReplaySizes
from experiments.training.loop import Program, make_program
from jaxreplay.testing import large_copies


class Case(NamedTuple):
    """An agent and a task."""

    agent: str
    env: str
    batch_size: int
    hidden: tuple[int, ...]
    options: Mapping[str, Any] = MappingProxyType({})  # of our agent, to match its peers


class Loop(NamedTuple):
    """A training loop to time."""

    run: Run  # steps in every seed -> seconds
    compiling: float | None = None  # processor seconds to compile it, including tracing
    size: Size = Size()
    large_copies: int | None = None  # instructions in its loops that copy an array of the replay
    steps: int | None = None  # the only number of steps per call


# Peers' DQN has neither double Q-learning nor gradient clipping.
_PLAIN = MappingProxyType({"double": False, "max_grad_norm": 0.0})
CASES: Mapping[str, Case] = MappingProxyType(
    {
        "dqn": Case("dqn", "gymnax/CartPole-v1", 128, (64, 64), _PLAIN),
        "td3": Case("td3", "gymnax/Pendulum-v1", 256, (256, 256)),
        "sac": Case("sac", "gymnax/Pendulum-v1", 256, (256, 256)),
    }
)


def run_config(case: Case, replay: str, seeds: int, capacity: int) -> RunConfig:
    """Return a run with one environment per seed, one update per step and no inspection."""
    config = defaults(case.env, case.agent, replay)
    loop = LoopConfig(
        steps=1_000_000, warmup=1_000, eval_every=1_000_000, eval_episodes=1, inspect=0
    )
    options = dataclasses.replace(config.agent_options, hidden=case.hidden, **case.options)
    sizes = ReplaySizes(num_envs=1, capacity=capacity, batch_size=case.batch_size)
    return dataclasses.replace(config, seeds=seeds, agent_options=options, sizes=sizes, loop=loop)


def make(case: Case, replay: str, seeds: int, capacity: int) -> Program:
    """Return the program of a training loop with one of our replay methods."""
    config = run_config(case, replay, seeds, capacity)
    parts = assemble(config)
    return make_program(parts.environment, parts.agent, parts.replay, config.loop)


def ours(case: Case, replay: str, seeds: int, capacity: int) -> Loop:
    """Return our training loop, all seeds in one program."""
    programs = compile_run(make(case, replay, seeds, capacity), seeds)
    state = programs["warm-up"].run(jax.vmap(jax.random.key)(jnp.arange(seeds)))
    training = programs["training"]
    run = _run_of(state, lambda state, blocks: training.run(state, jnp.int32(blocks)))
    seconds = sum(one.tracing + one.compiling for one in programs.values())
    return Loop(run, seconds, training.size, len(large_copies(training.text, capacity)))


def distributed(case: Case, replay: str, seeds: int, capacity: int) -> Loop:
    """Return our training loop as runs distribute it: several programs over all cores."""
    training = build(run_config(case, replay, seeds, capacity))
    return Loop(_run_of(training.init(), training.chunk))


def _run_of(state: Any, chunk: Callable[[Any, int], tuple[Any, Any]]) -> Run:
    """Return a function that times steps without the evaluation that ends a chunk."""

    def timed(blocks: int) -> float:
        nonlocal state
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(chunk(state, blocks))
        return time.perf_counter() - begin

    def run(count: int) -> float:
        total = timed(count)
        # A chunk of zero blocks is the same evaluation alone.
        return max(total - timed(0), 1e-9)

    return run
