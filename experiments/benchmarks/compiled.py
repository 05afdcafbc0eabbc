"""Programs compiled ahead: what that takes, and what comes of it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks import hlo
from experiments.training.loop import Program
from experiments.training.seeds import over_seeds
from experiments.training.state import a_key


class Compiled(NamedTuple):
    """A compiled function."""

    run: Callable[..., Any]
    tracing: float  # processor seconds, lowering included
    compiling: float  # processor seconds
    text: str  # optimised HLO
    operations: int  # before XLA optimises it

    @property
    def program(self) -> tuple[int, int, int, int]:
        """Operations, and the instructions, fusions and loops that XLA makes of them."""
        return self.operations, *self.counts[:3]

    @property
    def counts(self) -> hlo.Counts:
        """What it consists of."""
        return hlo.counts(self.text)


def compile_for(function: Any, *inputs: Any) -> Compiled:
    """Compile a jitted function for inputs, or their shapes and dtypes.

    Call `jax.clear_caches()` before a new loop: nothing of another one may be taken for a part of
    it, nor save it time.
    """
    start = time.process_time()
    lowered = function.lower(*inputs)
    traced = time.process_time()
    made = lowered.compile()
    seconds = time.process_time() - traced
    operations = hlo.operations(lowered.as_text())
    return Compiled(made, traced - start, seconds, made.as_text() or "", operations)


def compile_run(program: Program, seeds: int) -> dict[str, Compiled]:
    """Compile the two programs of a run: "warm-up", and "training" with an evaluation.

    The first takes keys `[S]`, the second the state, which is donated, and a number of blocks.
    """
    jax.clear_caches()  # but not between the two, as in a run
    start = time.process_time()
    functions = functions_of(program, seeds)
    shared = (time.process_time() - start) / 2
    both = {name: compile_for(one, *inputs) for name, (one, inputs) in functions.items()}
    return {name: one._replace(tracing=one.tracing + shared) for name, one in both.items()}


def functions_of(program: Program, seeds: int) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the two jitted functions of a run, traced once, with the shapes of their inputs."""
    made = over_seeds(program)
    keys = jax.ShapeDtypeStruct((seeds,), a_key().dtype)
    blocks = jax.ShapeDtypeStruct((), jnp.int32)
    return {"warm-up": (made.init, (keys,)), "training": (made.chunk, (made.like(seeds), blocks))}
