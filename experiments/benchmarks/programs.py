"""Compiled programs: processor seconds to trace and compile them, and their sizes."""

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.training.loop import Program
from experiments.training.seeds import over_seeds
from experiments.training.state import a_key


class Size(NamedTuple):
    """Numbers of instructions in a compiled program; None: unknown."""

    instructions: int | None = None  # including those within fusions
    fusions: int | None = None
    loops: int | None = None


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
    jax.clear_caches()  # not between the two, as in a run
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
