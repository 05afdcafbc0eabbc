"""What the benchmark of training loops found, and how it is shown."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from experiments.benchmarks.tables import table


@dataclasses.dataclass(frozen=True)
class Result:
    """How fast one training loop is."""

    case: str
    seeds: int
    cores: int  # of the processor, that it may use
    loop: str
    us: tuple[float, ...]  # microseconds per step of all seeds, one number per turn
    median_us: float
    steps_per_second: float  # agent steps of all seeds
    over_uniform: float | None  # time added to uniform replay's, as a share of it; turn by turn
    to_ours: float | None  # its time, relative to that of our loop with uniform replay
    of_large: float  # share of the machine's rate at a large matrix product that a step reaches
    of_own: float  # share of its rate at the step's own products
    compile_seconds: float | None  # of the processor, tracing included
    program: Mapping[str, int] | None  # instructions, fusions, loops and products in it
    large_copies: int | None  # instructions in its loops that copy a whole array of the replay


@dataclasses.dataclass(frozen=True)
class Products:
    """The matrix products of a case, and how fast the machine computes them."""

    case: str
    seeds: int
    cores: int
    operations: float  # floating-point operations per step of all seeds
    large_gflops: float  # 10^9 operations per second
    own_gflops: float


def details(results: Sequence[Result], products: Products) -> str:
    """Return all that is known of the loops of one case, as a Markdown table."""
    title = (
        f"\n**{products.case}, {products.seeds} at once: {products.operations / 1e6:,.2f} million "
        f"operations in matrix products per step; the machine does {products.large_gflops:,.1f} "
        f"billion a second in a large one, {products.own_gflops:,.1f} in the step's own**\n"
    )
    head = ["loop", "steps/s", "us per step", "over uniform, %", "to ours", "of large, %"]
    head += ["of own, %", "compiling, s", "instructions", "fusions", "loops", "products", "copies"]
    rows = []
    for result in results:
        over, program = result.over_uniform, result.program or {}
        rows.append(
            [
                result.loop,
                result.steps_per_second,
                result.median_us,
                None if over is None else 100 * over,
                result.to_ours,
                100 * result.of_large,
                100 * result.of_own,
                result.compile_seconds,
                *(program.get(name) for name in ("instructions", "fusions", "loops", "products")),
                result.large_copies,
            ]
        )
    return f"{title}\n{table(head, rows)}"


def summary(results: Sequence[Result]) -> str:
    """Return steps/s and seconds of compiling of all loops, a row per case: a Markdown table."""
    longest = sorted(results, key=lambda result: -result.seeds)  # some are for several seeds alone
    loops = list(dict.fromkeys(result.loop for result in longest))
    several = len({result.cores for result in results}) > 1
    places = list(dict.fromkeys((r.case, r.seeds, r.cores) for r in results))

    def rows(of: Callable[[Result], float | None]) -> list[list]:
        found = {(r.case, r.seeds, r.cores, r.loop): of(r) for r in results}
        return [
            [_name(*place, several), *(found.get((*place, loop)) for loop in loops)]
            for place in places
        ]

    speeds = rows(lambda result: result.steps_per_second)
    ratios = rows(lambda result: result.to_ours)
    seconds = rows(lambda result: result.compile_seconds)
    return "\n".join(
        [
            "\n**steps/s of all seeds**\n",
            table(["loop", *loops], speeds),
            "\n**time of a step, relative to ours with uniform replay, turn by turn**\n",
            table(["loop", *loops], ratios),
            "\n**processor seconds to compile**\n",
            table(["loop", *loops], seconds),
        ]
    )


def _name(case: str, seeds: int, cores: int, several: bool) -> str:
    where = f", {cores} core{'s' if cores > 1 else ''}" if several else ""
    return f"{case}, {seeds} seed{'s' if seeds > 1 else ''}{where}"
