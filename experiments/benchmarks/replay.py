"""Time our replay beside peers: `python -m experiments.benchmarks.replay`.

One cycle adds a row, samples a batch, and gives it new priorities. Contenders take turns within one
process; times are medians over the turns, and ratios are taken turn by turn. Modes:

  scan        in a compiled loop
  dispatched  driven from Python, with donated state, one call per verb
  one-call    the same, one call between two learning steps: update, add and sample the next batch
  packed-call the same, with state, row and batch as few arrays (jaxreplay.loops.packed)
  numpy-call  the same, with batches and TD errors as NumPy arrays, for a learner without JAX
  vmapped     in a compiled loop for several seeds at once (time of all of them)
  train       a train step with a small critic, in a compiled loop

Peers are optional (make bench installs them); missing ones are named.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.benchmarks import devices, figure, outputs, peers, timing
from experiments.benchmarks.growth import CAPACITIES, Growth, grow, memories
from experiments.benchmarks.measure import CYCLE, MODES, Result, Settings, measure
from experiments.benchmarks.peers import Found
from experiments.benchmarks.tables import table
from experiments.cli.options import Parser, add_options, read_options
from experiments.runs.log import say


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(
        prog="python -m experiments.benchmarks.replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, Settings)
    parser.add_argument(
        "--growth", action="store_true",
        help="measure instead how our costs and the tree's memory grow with the capacity "
        f"(by default up to {max(CAPACITIES):,} slots and batches of 256)",
    )  # fmt: skip
    outputs.add_out(parser)
    outputs.add_figure(parser, "whole cycles")
    args = parser.parse_args(argv)
    wide = Settings(capacities=CAPACITIES, batch_sizes=(256,)) if args.growth else Settings()
    try:
        settings = read_options(args, wide)
        devices.use(settings.device)
    except ValueError as error:
        parser.error(str(error))
    if args.figure and (args.growth or CYCLE not in settings.verbs):
        parser.error("--figure shows whole cycles of all peers: leave it out, or time cycles")
    content = {"machine": timing.machine(), "settings": dataclasses.asdict(settings)}
    if args.growth:
        content |= _growth(settings)
        outputs.write(args.out, content)
        return 0
    found = peers.find(settings.peers)
    missing = sorted(found.missing)  # the reasons name folders of this machine
    content |= {"versions_of_peers": found.versions, "missing": missing, "results": []}
    results: list[Result] = []
    for new in _compare(found, settings):  # this takes long, so results are written as they come
        results += new
        content["results"] += [dataclasses.asdict(result) for result in new]
        outputs.write(args.out, content)
        if args.figure:
            figure.plot(results, args.figure, _where(content["machine"]))
    return 0


def _compare(found: Found, settings: Settings) -> Iterator[list[Result]]:
    """Measure and print, one table per capacity, batch size and mode."""
    for capacity in settings.capacities:
        for batch_size in settings.batch_sizes:
            say(f"{capacity:,} slots, batch {batch_size:,}")
            new = list(measure(found.peers, capacity, batch_size, settings))
            for mode in settings.modes:
                _print(mode, new, settings)
            yield new
    for package, why in found.missing.items():
        print(f"missing: {package} ({why})")


def _print(mode: str, measured: Sequence[Result], settings: Settings) -> None:
    results = [result for result in measured if result.mode == mode]
    if not results:
        return
    first = results[0]
    what = f"{mode} {settings.seeds} seeds" if mode == "vmapped" else mode
    print(f"\n**{what}: {MODES[mode]}; {first.capacity:,} slots, batch {first.batch_size:,}**\n")
    verbs = list(dict.fromkeys(result.verb for result in results if result.order is None))
    orders = list(dict.fromkeys(result.order for result in results if result.order is not None))
    columns = {"ratio to ours": "ratio_to_ours", "large copies": "large_copies"}
    if mode not in ("scan", "vmapped", "train"):
        del columns["large copies"]  # single calls are not searched for copies
    head = ["us", *verbs]
    for order in orders:
        head += [order, *columns] + (["to one seed"] if mode == "vmapped" else [])
    alone = {(r.peer, r.order): r.median_us for r in measured if r.mode == "scan"}
    rows = []
    for peer in dict.fromkeys(result.peer for result in results):
        mine = {(r.verb, r.order): r for r in results if r.peer == peer}
        row: list[Any] = [peer, *(_get(mine.get((verb, None)), "median_us") for verb in verbs)]
        for order in orders:
            result = mine.get((CYCLE, order))
            row += [_get(result, name) for name in ("median_us", *columns.values())]
            if mode == "vmapped":
                one = alone.get((peer, order))
                row.append(result.median_us / one if result and one else None)
        rows.append(row)
    print(table(head, rows), flush=True)


def _get(result: Result | None, name: str) -> Any:
    return None if result is None else getattr(result, name)


def _growth(settings: Settings) -> dict[str, Any]:
    """Measure and print how costs grow; return the content for the JSON file."""
    capacities = sorted(settings.capacities)
    lines: list[Growth] = []
    memory = memories(capacities[-1])
    for batch_size in settings.batch_sizes:
        say(f"growth, batch {batch_size:,}")
        grown = grow(capacities, batch_size, settings)
        lines += grown
        head = [
            "slots",
            "cycle, us",
            "ratio",
            "tree alone, us",
            "ratio",
            "tree / (4 bytes x slots)",
        ]
        rows = [[f"{line.capacity:,}", *dataclasses.astuple(line)[2:]] for line in grown]
        print(f"\n**growth of our costs, in a compiled loop; batch {batch_size:,}**\n")
        print(table(head, rows))
    print(f"\n**memory of the tree at {capacities[-1]:,} slots, relative to its leaves**\n")
    print(table(["children per node", *map(str, memory)], [["tree / leaves", *memory.values()]]))
    return {
        "growth": [dataclasses.asdict(line) for line in lines],
        "tree_memory_by_branching": memory,
    }


def _where(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['cores']} cores; device {machine['device']}; "
        f"Python {machine['python']}, jax {machine['jax']}"
    )


if __name__ == "__main__":
    sys.exit(main())
