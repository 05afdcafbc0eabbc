"""Time compilation: `python -m experiments.benchmarks.compiling`.

A run has two programs: the warm-up, and the training loop with its evaluation. For agents, replay
methods and numbers of seeds, this benchmark reports the processor seconds to trace and compile
each, the operations that JAX passes to XLA, and the instructions, fusions and loops after XLA's
optimisations. The compilation cache is not used. Seconds depend on the machine, operations only on
the versions of the code and of jax; a test compares two programs with the committed table.
"""

import dataclasses
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import jax

from experiments.benchmarks import command
from experiments.benchmarks.training_loops import CASES, compile_run, make
from experiments.runs.log import say
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
    programs = compile_run(make(CASES[case], replay, seeds, capacity), seeds)
    return [
        {
            "case": case, "replay": replay, "seeds": seeds, "program": name,
            "tracing": one.tracing, "compiling": one.compiling, "operations": one.operations,
            **one.size._asdict(),
        }
        for name, one in programs.items()
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    settings, out = command.read("compiling", __doc__, Settings(), argv)
    jax.config.update("jax_enable_compilation_cache", False)
    results = []
    for case, replay, seeds in itertools.product(settings.cases, settings.replays, settings.seeds):
        say(f"{case}, {replay}, seeds: {seeds}")
        results += measure(case, replay, seeds, settings.capacity)
    print(command.table(list(results[0]), [list(one.values()) for one in results]), flush=True)
    command.write(out, {"settings": dataclasses.asdict(settings), "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
