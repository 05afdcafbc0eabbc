"""What compiling takes: `python -m experiments.benchmarks.compiling`.

Of the two programs of a run, the warm-up and the training loop with its evaluation, for agents,
replay methods and numbers of seeds: processor seconds to trace and to compile them, how many
operations JAX hands to XLA, and how many instructions, fusions and loops XLA makes of them. Nothing
compiled earlier is used. On another machine seconds differ; operations hang on the versions of the
code and of jax alone, and a test holds two programs to those of the committed table.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import jax

from experiments.benchmarks import devices, outputs
from experiments.benchmarks.compiled import compile_run
from experiments.benchmarks.tables import table
from experiments.benchmarks.training_loops import CASES, run_config
from experiments.cli.options import Parser, add_options, read_options
from experiments.runs.assembly import assemble
from experiments.runs.log import say
from experiments.training.loop import make_program
from jaxreplay.option import option

_REPLAYS = ("uniform", "per", "rank", "lap", "pal", "pser", "ere", "ero", "ners")


@dataclasses.dataclass(frozen=True)
class Settings(devices.OnDevice):
    """What to compile."""

    cases: tuple[str, ...] = option(tuple(CASES), "agents, each on its task", choices=tuple(CASES))
    replays: tuple[str, ...] = option(("uniform", "per"), "replay methods", choices=_REPLAYS)
    seeds: tuple[int, ...] = option((1, 8), "numbers of seeds, each in one program", at_least=1)
    capacity: int = option(100_000, "slots per seed", at_least=256)


@dataclasses.dataclass(frozen=True)
class Result:
    """What one program took."""

    case: str
    replay: str
    seeds: int
    program: str  # "warm-up" or "training"
    tracing: float  # processor seconds, lowering included
    compiling: float  # processor seconds
    operations: int  # as JAX hands it to XLA
    instructions: int  # as XLA makes it
    fusions: int
    loops: int


def measure(case: str, replay: str, seeds: int, capacity: int) -> list[Result]:
    """Trace and compile the programs of a run, and count what they consist of."""
    config = run_config(CASES[case], replay, seeds, capacity)
    parts = assemble(config)
    program = make_program(parts.environment, parts.agent, parts.replay, config.loop)
    return [
        Result(case, replay, seeds, name, one.tracing, one.compiling, *one.program)
        for name, one in compile_run(program, seeds).items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(
        prog="python -m experiments.benchmarks.compiling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, Settings)
    outputs.add_out(parser)
    args = parser.parse_args(argv)
    try:
        settings = read_options(args, Settings())
        devices.use(settings.device)
    except ValueError as error:
        parser.error(str(error))
    jax.config.update("jax_enable_compilation_cache", False)
    results = []
    for case in settings.cases:
        for replay in settings.replays:
            for seeds in settings.seeds:
                say(f"{case}, {replay}, {seeds} seed{'s' if seeds > 1 else ''}")
                results += measure(case, replay, seeds, settings.capacity)
    head = [
        "program",
        "tracing, s",
        "compiling, s",
        "operations",
        "instructions",
        "fusions",
        "loops",
    ]
    rows = [
        [
            f"{one.case}, {one.replay}, {one.seeds} seed{'s' if one.seeds > 1 else ''}: "
            f"{one.program}",
            one.tracing, one.compiling, one.operations, one.instructions, one.fusions, one.loops,
        ]
        for one in results
    ]  # fmt: skip
    print(table(head, rows), flush=True)
    content = {
        "settings": dataclasses.asdict(settings),
        "results": [dataclasses.asdict(result) for result in results],
    }
    outputs.write(args.out, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
