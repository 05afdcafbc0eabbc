"""Whole training loops: their programs, and the seconds to compile and to run them."""

import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks.timing import Run
from experiments.runs.assembly import assemble, build
from experiments.runs.run_config import RunConfig, defaults
from experiments.training.config import LoopConfig, ReplaySizes
from experiments.training.loop import Program, make_program
from experiments.training.seeds import over_seeds
from experiments.training.state import a_key
from jaxreplay.testing import large_copies


class Case(NamedTuple):
    """An agent and a task."""

    agent: str
    env: str
    batch_size: int
    hidden: tuple[int, ...]
    options: Mapping[str, Any] = MappingProxyType({})  # agent's, to match other projects


class Size(NamedTuple):
    """Numbers of instructions in a compiled program; None if unknown."""

    instructions: int | None = None  # including those within fusions
    fusions: int | None = None
    loops: int | None = None


class Loop(NamedTuple):
    """A training loop to time."""

    run: Run  # steps in every seed -> seconds
    compiling: float | None = None  # processor seconds to compile it, including tracing
    size: Size = Size()
    large_copies: int | None = None  # instructions in its loops that copy an array of the replay


# DQN of purejaxrl and rejax has neither double Q-learning nor gradient clipping.
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
    """Return our training loop with all seeds in one program."""
    programs = compile_run(make(case, replay, seeds, capacity), seeds)
    state = programs["warm-up"].run(jax.vmap(jax.random.key)(jnp.arange(seeds)))
    training = programs["training"]
    run = _run_of(state, lambda state, blocks: training.run(state, jnp.int32(blocks)))
    seconds = sum(one.tracing + one.compiling for one in programs.values())
    return Loop(run, seconds, training.size, len(large_copies(training.text, capacity)))


def run_distributed(case: Case, replay: str, seeds: int, capacity: int) -> Loop:
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


class Compiled(NamedTuple):
    """A compiled function."""

    run: Callable[..., Any]
    tracing: float  # processor seconds, including lowering
    compiling: float  # processor seconds
    text: str  # optimised HLO
    operations: int  # passed from JAX to XLA

    @property
    def size(self) -> Size:
        """Numbers of instructions after XLA's optimisations."""
        return Size(
            instructions=len(re.findall(r"^\s+(?:ROOT )?%[\w.-]+ = ", self.text, re.MULTILINE)),
            fusions=len(re.findall(r" fusion\(", self.text)),
            loops=len(re.findall(r" while\(", self.text)),
        )


def operations(text: str) -> int:
    """Return the number of operations in StableHLO; those of a called function count once."""
    return len(re.findall(r" = \"?(?:stablehlo|chlo)\.", text))


def compile_for(function: Any, *inputs: Any) -> Compiled:
    """Compile a jitted function for inputs, or for their shapes and dtypes.

    Call `jax.clear_caches()` before each loop, so that no part of it was already traced.
    """
    start = time.process_time()
    lowered = function.lower(*inputs)
    traced = time.process_time()
    run = lowered.compile()
    seconds = time.process_time() - traced
    count = operations(lowered.as_text())
    return Compiled(run, traced - start, seconds, run.as_text() or "", count)


def compile_run(program: Program, seeds: int) -> dict[str, Compiled]:
    """Compile the two programs of a run: "warm-up", and "training" with its evaluation.

    The first takes keys `[S]`, the second the state, which is donated, and a number of blocks.
    """
    jax.clear_caches()  # only once, since the programs of a run share caches
    start = time.process_time()
    functions = functions_of(program, seeds)
    shared = (time.process_time() - start) / 2
    both = {name: compile_for(one, *inputs) for name, (one, inputs) in functions.items()}
    return {name: one._replace(tracing=one.tracing + shared) for name, one in both.items()}


def functions_of(program: Program, seeds: int) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the two jitted functions of a run, traced once, with the shapes of their inputs."""
    run = over_seeds(program)
    keys = jax.ShapeDtypeStruct((seeds,), a_key().dtype)
    blocks = jax.ShapeDtypeStruct((), jnp.int32)
    return {"warm-up": (run.init, (keys,)), "training": (run.chunk, (run.like(seeds), blocks))}
