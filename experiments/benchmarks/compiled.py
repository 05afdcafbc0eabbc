"""Programs compiled ahead: what that takes, and what comes of it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks import hlo
from experiments.training.loop import Program
from experiments.training.seeds import over_seeds


class Compiled(NamedTuple):
    """A compiled function."""

    run: Callable[..., Any]
    tracing: float  # processor seconds, lowering included
    compiling: float  # processor seconds
    text: str  # optimised HLO

    @property
    def counts(self) -> hlo.Counts:
        """What it consists of."""
        return hlo.counts(self.text)


def compile_for(function: Any, *inputs: Any) -> Compiled:
    """Compile a jitted function for inputs, or their shapes and dtypes.

    What was traced and compiled before is forgotten first: nothing of another loop may be taken for
    a part of this one, nor save it time.
    """
    jax.clear_caches()
    start = time.process_time()
    lowered = function.lower(*inputs)
    traced = time.process_time()
    made = lowered.compile()
    return Compiled(made, traced - start, time.process_time() - traced, made.as_text() or "")


def compile_run(program: Program, seeds: int) -> dict[str, Compiled]:
    """Compile the two programs of a run: "warm-up", and "training" with an evaluation.

    The first takes keys `[S]`, the second the state, which is donated, and a number of blocks.
    """
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    start = time.process_time()
    made = over_seeds(program)  # traces both
    shared = (time.process_time() - start) / 2
    state = jax.eval_shape(made.init, keys)
    blocks = jax.ShapeDtypeStruct((), jnp.int32)
    both = {
        "warm-up": compile_for(made.init, keys),
        "training": compile_for(made.chunk, state, blocks),
    }
    return {name: one._replace(tracing=one.tracing + shared) for name, one in both.items()}
