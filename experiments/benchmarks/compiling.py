"""Time compilation: `python -m experiments.benchmarks.compiling`.

A run has two programs: the warm-up, and the training loop with its evaluation. For agents, replay
methods and numbers of seeds, this benchmark reports the processor seconds to trace and compile
each, the operations that JAX passes to XLA, and the instructions, fusions and loops after XLA's
optimisations. The compilation cache is not used. Seconds depend on the machine, operations only on
the versions of the code and of jax; a test compares two programs with the committed table.
"""

import dataclasses
import itertools
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax

from experiments.benchmarks import command
from experiments.benchmarks.training import CASES, functions_of, run_config
from experiments.runs.log import say, show
from jaxreplay.option import Config, option

_REPLAYS = ("uniform", "per", "rank", "lap", "pal", "pser", "ere", "ero", "ners")


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """Programs to compile."""

    cases: tuple[str, ...] = option(tuple(CASES), "agents, each on its task", choices=tuple(CASES))
    replays: tuple[str, ...] = option(("uniform", "per"), "replay methods", choices=_REPLAYS)
    seeds: tuple[int, ...] = option((1, 8), "numbers of seeds, each in one program", at_least=1)
    capacity: int = option(100_000, "slots per seed", at_least=256)


def measure(case: str, replay: str, seeds: int, capacity: int) -> list[dict[str, Any]]:
    """Compile the programs of a run; return their processor seconds and sizes."""
    config = run_config(CASES[case], replay, seeds, capacity)
    jax.clear_caches()  # so that no part is already traced; the programs of a run share caches
    start = time.process_time()
    functions = functions_of(config)
    shared = (time.process_time() - start) / 2
    results = []
    for name, (function, inputs) in functions.items():
        one = compile_for(function, *inputs)
        one["tracing"] += shared
        results.append({"case": case, "replay": replay, "seeds": seeds, "program": name, **one})
    return results


def compile_for(function: Any, *inputs: Any) -> dict[str, Any]:
    """Compile a jitted function for inputs, or for their shapes and dtypes.

    Returns:
      Processor seconds of tracing and lowering, and of compiling; operations passed from JAX to
      XLA; instructions (including those within fusions), fusions and loops of the optimised HLO.
    """
    start = time.process_time()
    lowered = function.lower(*inputs)
    traced = time.process_time()
    compiled = lowered.compile()
    seconds = time.process_time() - traced
    text = compiled.as_text() or ""
    return {
        "tracing": traced - start,
        "compiling": seconds,
        "operations": operations(lowered.as_text()),
        "instructions": len(re.findall(r"^\s+(?:ROOT )?%[\w.-]+ = ", text, re.MULTILINE)),
        "fusions": len(re.findall(r" fusion\(", text)),
        "loops": len(re.findall(r" while\(", text)),
    }


def operations(text: str) -> int:
    """Return the number of operations in StableHLO; those of a called function count once."""
    return len(re.findall(r" = \"?(?:stablehlo|chlo)\.", text))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    settings, out = command.read("compiling", __doc__, Settings(), argv)
    jax.config.update("jax_enable_compilation_cache", False)
    results = []
    for case, replay, seeds in itertools.product(settings.cases, settings.replays, settings.seeds):
        say(f"{case}, {replay}, seeds: {seeds}")
        results += measure(case, replay, seeds, settings.capacity)
    show(command.table(list(results[0]), [list(one.values()) for one in results]))
    command.write(out, {"settings": dataclasses.asdict(settings), "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
