"""Time whole training loops: `python -m experiments.benchmarks.training`.

DQN on CartPole, TD3 and SAC on Pendulum, one update per step, with several replay methods and for
one and several seeds at once; beside them the same loop around flashbax, and sbx, where installed.
Every loop is one program, but with `--spread true`, where ours run over all cores as well.
Loops take turns within one process; times are medians over the turns, and the cost of
prioritisation is taken turn by turn. Matrix products bound a step in the end: the machine's rate at
a large one, and at those of the step itself, is measured in the same turns.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.files import write_json
from experiments.benchmarks import gemm, timing, training_loops
from experiments.benchmarks.tables import table
from experiments.benchmarks.training_loops import CASES
from experiments.cli.options import Parser, add_options, read_options
from experiments.runs.log import say
from jaxreplay.option import Config, option

_REPLAYS = ("uniform", "per", "lap", "pal")
_PEERS = ("flashbax", "sbx")
_LARGE, _OWN = "matrix product, large", "matrix products of the step"


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """What to measure, and how long."""

    cases: tuple[str, ...] = option(tuple(CASES), "agents, each on its task", choices=tuple(CASES))
    replays: tuple[str, ...] = option(_REPLAYS, "our replay methods", choices=_REPLAYS)
    peers: tuple[str, ...] = option(
        _PEERS, "peers to compare with, or none", choices=(*_PEERS, "none")
    )
    seeds: tuple[int, ...] = option((1, 8), "numbers of seeds, each in one program", at_least=1)
    spread: bool = option(
        False, "also our loops as runs lay them out: programs of a few seeds, over all cores"
    )
    capacity: int = option(100_000, "slots per seed", at_least=1)
    matrix: int = option(2048, "rows and columns of the large matrix product", at_least=1)
    turns: int = option(5, "turns of each loop; times are medians over them", at_least=1)
    seconds: float = option(1.0, "approximate length of a turn", above=0)

    def check(self) -> None:
        """Refuse a capacity that holds no batch."""
        largest = max(CASES[name].batch_size for name in self.cases)
        if self.capacity < largest:
            raise ValueError(f"capacity is {self.capacity}: it must hold a batch of {largest}")


@dataclasses.dataclass(frozen=True)
class Result:
    """How fast one training loop is."""

    case: str
    seeds: int
    loop: str
    us: tuple[float, ...]  # microseconds per step of all seeds, one number per turn
    median_us: float
    steps_per_second: float  # agent steps of all seeds
    over_uniform: float | None  # time added to uniform replay's, as a share of it; turn by turn
    of_large: float  # share of the machine's rate at a large matrix product that a step reaches
    of_own: float  # share of its rate at the step's own products


@dataclasses.dataclass(frozen=True)
class Products:
    """The matrix products of a case, and how fast the machine computes them."""

    case: str
    seeds: int
    operations: float  # floating-point operations per step of all seeds
    large_gflops: float  # 10^9 operations per second
    own_gflops: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(
        prog="python -m experiments.benchmarks.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, Settings)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the numbers as JSON")
    args = parser.parse_args(argv)
    try:
        settings = read_options(args, Settings())
    except ValueError as error:
        parser.error(str(error))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    products: list[Products] = []
    missing: dict[str, str] = {}
    for case in settings.cases:
        for seeds in settings.seeds:
            say(f"{case}, {seeds} seed{'s' if seeds > 1 else ''}")
            new, product, absent = measure(case, seeds, settings)
            _print(new, product)
            results, products, missing = [*results, *new], [*products, product], missing | absent
    for package, why in missing.items():
        print(f"missing: {package} ({why})")
    if args.out:
        content = {
            "machine": timing.machine(),
            "settings": dataclasses.asdict(settings),
            "missing": sorted(missing),  # the reasons name folders of this machine
            "matrix_products": [dataclasses.asdict(product) for product in products],
            "results": [dataclasses.asdict(result) for result in results],
        }
        write_json(args.out, content)
    return 0


def measure(
    name: str, seeds: int, settings: Settings
) -> tuple[list[Result], Products, dict[str, str]]:
    """Time the loops of one case; also return what is missing."""
    case = CASES[name]
    runs = {}
    for replay in settings.replays:
        say(f"  warming up {replay}")
        runs[replay] = training_loops.ours(case, replay, seeds, settings.capacity)
        if settings.spread:
            name = f"{replay}, over all cores"
            runs[name] = training_loops.as_run(case, replay, seeds, settings.capacity)
    missing: dict[str, str] = {}
    if "flashbax" in settings.peers:
        say("  warming up flashbax")
        more, absent = training_loops.around_peers(case, seeds, settings.capacity)
        runs, missing = runs | more, missing | absent
    if "sbx" in settings.peers and seeds == 1:  # it has no way to train several at once
        say("  warming up sbx")
        more, absent = training_loops.sbx(case, settings.capacity)
        runs, missing = runs | more, missing | absent
    own = [product.over(seeds) for product in training_loops.step_products(case)]
    work = {_LARGE: [gemm.large(settings.matrix)], _OWN: own}
    say("  taking turns")
    times = timing.take_turns(
        runs | {key: gemm.run_of(products) for key, products in work.items()},
        settings.turns,
        settings.seconds,
    )
    # A run computes every product once per cycle, however often a step does.
    rates = {
        key: [sum(p.operations() for p in products) / us * 1e-3 for us in times[key]]
        for key, products in work.items()
    }
    operations = gemm.operations(own)
    results = [
        _result(name, seeds, loop, times, operations, rates[_LARGE], rates[_OWN]) for loop in runs
    ]
    large_rate, own_rate = (statistics.median(rates[key]) for key in (_LARGE, _OWN))
    return results, Products(name, seeds, operations, large_rate, own_rate), missing


def _result(
    case: str,
    seeds: int,
    loop: str,
    times: dict[str, list[float]],
    operations: float,
    large: Sequence[float],
    own: Sequence[float],
) -> Result:
    us = times[loop]
    median = statistics.median(us)
    plain = "flashbax uniform" if loop.startswith("flashbax") else "uniform"
    over = None
    if loop not in (plain, "sbx") and plain in times:
        over = timing.ratio(us, times[plain]) - 1
    reached = [operations / each * 1e-3 for each in us]
    return Result(
        case,
        seeds,
        loop,
        tuple(us),
        median,
        seeds * 1e6 / median,
        over,
        of_large=timing.ratio(reached, large),
        of_own=timing.ratio(reached, own),
    )


def _print(results: Sequence[Result], products: Products) -> None:
    print(
        f"\n**{products.case}, {products.seeds} at once: {products.operations / 1e6:,.2f} million "
        f"operations in matrix products per step; the machine does {products.large_gflops:,.1f} "
        f"billion a second in a large one, {products.own_gflops:,.1f} in the step's own**"
        "\n"
    )
    head = ["loop", "steps/s", "us per step", "over uniform, %", "of large, %", "of own, %"]
    rows = [
        [
            result.loop,
            result.steps_per_second,
            result.median_us,
            None if result.over_uniform is None else 100 * result.over_uniform,
            100 * result.of_large,
            100 * result.of_own,
        ]
        for result in results
    ]
    print(table(head, rows), flush=True)


if __name__ == "__main__":
    sys.exit(main())
