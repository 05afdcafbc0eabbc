"""Time whole training loops: `python -m experiments.benchmarks.training`.

DQN on CartPole, TD3 and SAC on Pendulum, one update per step, with several replay methods and for
one and several seeds at once; beside them the same loop around flashbax, sbx, and the loops of
purejaxrl and rejax, where they are there. Every loop is one program, but with `--spread true`,
where ours run over all cores as well. Loops take turns within one process; times are medians over
the turns, and ratios are taken turn by turn. Compiling is timed in processor seconds. Matrix
products bound a step in the end: the machine's rate at a large one, and at those of the step
itself, is measured in the same turns.

The checkouts of purejaxrl (github's luchris429/purejaxrl) and rejax (keraJLi/rejax) may lie
anywhere; rejax may be installed instead. The table of the documentation is that of

  --replays uniform per --seeds 1 8 64 --capacity 10_000 --cores 2 1 --purejaxrl DIR --rejax DIR
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from experiments.benchmarks import (
    devices,
    gemm,
    hlo,
    outputs,
    peer_loops,
    timing,
    training_loops,
    training_tables,
)
from experiments.benchmarks.training_loops import CASES, Loop
from experiments.benchmarks.training_tables import Products, Result
from experiments.cli.options import Parser, add_options, read_options
from experiments.runs.log import say
from jaxreplay.option import option
from jaxreplay.testing import large_copies

_REPLAYS = ("uniform", "per", "lap", "pal")
_ALL = (*_REPLAYS, "rank", "ners")  # by default only those above
_PEERS = ("flashbax", "sbx", *peer_loops.NAMES)
# In a turn, however long: TD3's actor learns in every other one, and what is taken off a turn, its
# evaluation or warm-up, should be little beside it.
_FEWEST_STEPS = 20
_LARGE, _OWN = "matrix product, large", "matrix products of the step"


@dataclasses.dataclass(frozen=True)
class Settings(devices.OnDevice):
    """What to measure, and how long."""

    cases: tuple[str, ...] = option(tuple(CASES), "agents, each on its task", choices=tuple(CASES))
    replays: tuple[str, ...] = option(_REPLAYS, "our replay methods", choices=_ALL)
    peers: tuple[str, ...] = option(
        _PEERS, "peers to compare with, or none", choices=(*_PEERS, "none")
    )
    purejaxrl: str | None = option(None, "folder of a checkout of purejaxrl")
    rejax: str | None = option(None, "folder of a checkout of rejax; none: as installed")
    seeds: tuple[int, ...] = option((1, 8), "numbers of seeds, each in one program", at_least=1)
    spread: bool = option(
        False, "also our loops as runs lay them out: programs of a few seeds, over all cores"
    )
    capacity: int = option(100_000, "slots per seed", at_least=1)
    matrix: int = option(2048, "rows and columns of the large matrix product", at_least=1)
    turns: int = option(5, "turns of each loop; times are medians over them", at_least=1)
    seconds: float = option(
        1.0, f"approximate length of a turn, of at least {_FEWEST_STEPS} steps", above=0
    )
    cores: tuple[int, ...] | None = option(
        None,
        "numbers of processor cores, each measured in a process of its own that is kept to as "
        "many (Linux); none: this process, on those that it has",
        at_least=1,
    )

    def check(self) -> None:
        """Refuse a capacity that holds no batch, and checkouts and cores that are not there."""
        largest = max(CASES[name].batch_size for name in self.cases)
        if self.capacity < largest:
            raise ValueError(f"capacity is {self.capacity}: it must hold a batch of {largest}")
        for name, file in peer_loops.FILES.items():
            folder = getattr(self, name)
            if folder is not None and name not in self.peers:
                raise ValueError(f"{name} is for the peer {name}: add it to peers, or leave it out")
            if folder is not None and not (Path(folder) / file).is_file():
                raise ValueError(f"{name} is {folder}, which has no {file}: give a checkout")
        if self.cores is None:
            return
        if not hasattr(os, "sched_setaffinity"):
            raise ValueError("cores: this system keeps no process to some of them; leave it out")
        if max(self.cores) > timing.cores():
            raise ValueError(f"cores is {max(self.cores)}: this process has {timing.cores()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(
        prog="python -m experiments.benchmarks.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, Settings)
    outputs.add_out(parser)
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    try:
        settings = read_options(args, Settings())
        if settings.cores is None:
            devices.use(settings.device)
    except ValueError as error:
        parser.error(str(error))
    content = _here(settings) if settings.cores is None else _kept_to_cores(settings, argv)
    results = [Result(**result) for result in content["results"]]
    if settings.cores is None or len(settings.cores) > 1:  # else its process has printed it
        print(training_tables.summary(results), flush=True)
    outputs.write(args.out, content)
    return 0


def _here(settings: Settings) -> dict[str, Any]:
    """Measure in this process; return what is to be written."""
    jax.config.update("jax_enable_compilation_cache", False)
    results: list[Result] = []
    products: list[Products] = []
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    for case in settings.cases:
        for seeds in settings.seeds:
            say(f"{case}, {seeds} seed{'s' if seeds > 1 else ''}")
            loops, absent, found = _loops(case, seeds, settings)
            new, product = measure(case, seeds, loops, settings)
            print(training_tables.details(new, product), flush=True)
            results, products = [*results, *new], [*products, product]
            missing, versions = missing | absent, versions | found
    for package, why in missing.items():
        print(f"missing: {package} ({why})")
    # What is written names no folders of this machine, as reasons do.
    settings = dataclasses.replace(settings, purejaxrl=None, rejax=None)
    return {
        "machine": timing.machine(),
        "settings": dataclasses.asdict(settings),
        "versions_of_peers": versions,
        "missing": sorted(missing),
        "matrix_products": [dataclasses.asdict(product) for product in products],
        "results": [dataclasses.asdict(result) for result in results],
    }


def _kept_to_cores(settings: Settings, argv: Sequence[str]) -> dict[str, Any]:
    """Measure in a process per number of cores; return what is to be written."""
    cores = sorted(os.sched_getaffinity(0))
    merged: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.json"
        for number in settings.cores or ():
            say(f"kept to {number} core{'s' if number > 1 else ''}")
            module = "experiments.benchmarks.training"
            command = [sys.executable, "-m", module, *argv, "--cores", "none", "--out", str(path)]
            os.sched_setaffinity(0, cores[:number])  # processes inherit it
            try:
                subprocess.run(command, check=True)
            finally:
                os.sched_setaffinity(0, cores)
            found = json.loads(path.read_text())
            for name in ("matrix_products", "results"):
                found[name] = [*merged.get(name, []), *found[name]]
            merged = found
    settings = dataclasses.replace(settings, purejaxrl=None, rejax=None)
    return merged | {"settings": dataclasses.asdict(settings)}


def _loops(
    name: str, seeds: int, settings: Settings
) -> tuple[dict[str, Loop], dict[str, str], dict[str, str]]:
    """Return the loops of one case, what is missing, and versions of peers' loops."""
    case = CASES[name]
    loops: dict[str, Loop] = {}
    for replay in settings.replays:
        say(f"  compiling {replay}")
        loops[replay] = training_loops.ours(case, replay, seeds, settings.capacity)
        if settings.spread:
            laid_out = training_loops.as_run(case, replay, seeds, settings.capacity)
            loops[f"{replay}, over all cores"] = laid_out
    missing: dict[str, str] = {}
    if "flashbax" in settings.peers:
        say("  compiling flashbax in our loop")
        more, absent = training_loops.around_peers(case, seeds, settings.capacity)
        loops, missing = loops | more, missing | absent
    if "sbx" in settings.peers and seeds == 1:  # it has no way to train several at once
        say("  warming up sbx")
        more, absent = training_loops.sbx(case, settings.capacity)
        loops, missing = loops | more, missing | absent
    folders = {peer: getattr(settings, peer) for peer in peer_loops.NAMES if peer in settings.peers}
    steps = _steps(next(iter(loops.values())), settings)
    more, absent, versions = training_loops.of_other_projects(
        case, seeds, settings.capacity, steps, folders
    )
    return loops | more, missing | absent, versions


def _steps(loop: Loop, settings: Settings) -> int:
    return max(_FEWEST_STEPS, timing.cycles_for(loop.run, settings.seconds))


def measure(
    name: str, seeds: int, loops: dict[str, Loop], settings: Settings
) -> tuple[list[Result], Products]:
    """Time the loops of one case."""
    own = [product.over(seeds) for product in training_loops.step_products(CASES[name])]
    work = {_LARGE: [gemm.large(settings.matrix)], _OWN: own}
    say("  taking turns")
    times = timing.take_turns(
        {loop: one.run for loop, one in loops.items()}
        | {key: gemm.run_of(products) for key, products in work.items()},
        settings.turns,
        settings.seconds,
        {loop: one.steps or _steps(one, settings) for loop, one in loops.items()},
    )
    # A run computes every product once per cycle, however often a step does.
    rates = {
        key: [sum(p.operations() for p in products) / us * 1e-3 for us in times[key]]
        for key, products in work.items()
    }
    operations = gemm.operations(own)
    results = [
        _result(name, seeds, loop, one, times, operations, rates, settings.capacity)
        for loop, one in loops.items()
    ]
    large_rate, own_rate = (statistics.median(rates[key]) for key in (_LARGE, _OWN))
    return results, Products(name, seeds, timing.cores(), operations, large_rate, own_rate)


def _result(
    case: str,
    seeds: int,
    name: str,
    loop: Loop,
    times: dict[str, list[float]],
    operations: float,
    rates: dict[str, list[float]],
    capacity: int,
) -> Result:
    us = times[name]
    median = statistics.median(us)
    plain = "flashbax uniform" if name.startswith("flashbax") else "uniform"
    over = None
    if name != plain and plain in times and (name in _ALL or name.startswith("flashbax")):
        over = timing.ratio(us, times[plain]) - 1
    reached = [operations / each * 1e-3 for each in us]
    return Result(
        case,
        seeds,
        timing.cores(),
        name,
        tuple(us),
        median,
        seeds * 1e6 / median,
        over,
        timing.ratio(us, times["uniform"]) if "uniform" in times else None,
        of_large=timing.ratio(reached, rates[_LARGE]),
        of_own=timing.ratio(reached, rates[_OWN]),
        compile_seconds=loop.compiling,
        program=hlo.counts(loop.text)._asdict() if loop.text else None,
        large_copies=len(large_copies(loop.text, capacity)) if loop.text else None,
    )


if __name__ == "__main__":
    sys.exit(main())
