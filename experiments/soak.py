"""Try at length what must never happen: `python -m experiments.soak --help`.

`kills` kills runs at random moments, resumes them, and compares every byte with runs that nobody
killed; `tree` writes and draws from the sum tree very often; `inputs` tries bad command lines and
calls; `long` watches the memory and the open files of long runs. Each ends with exit code 1 if it
found anything.
"""

import argparse
import collections
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks import outputs
from experiments.cli.options import Parser
from experiments.soaks import calls, command_lines, inputs, kills, long, tree


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog="python -m experiments.soak", description=__doc__)
    what = parser.add_subparsers(dest="what", required=True, metavar="kills|tree|inputs|long")
    for name, text in (
        ("kills", "runs that are killed and resumed"), ("tree", "the sum tree"),
        ("inputs", "bad command lines and calls"), ("long", "memory and files of long runs"),
    ):  # fmt: skip
        sub = what.add_parser(name, help=text, description=text)
        outputs.add_out(sub)
        sub.add_argument("--seed", type=int, default=0, metavar="INT", help="[default 0]")
        if name == "kills":
            sub.add_argument("--rounds", type=_count, default=100, help="runs [default 100]")
        if name == "tree":
            sub.add_argument("--updates", type=_count, default=10**8, help="[default 1e8]")
        if name == "long":
            sub.add_argument("--minutes", type=float, default=60.0, help="[default 60]")
        if name == "inputs":
            sub.add_argument("--show", action="store_true", help="print every input's answer")
    args = parser.parse_args(argv)
    start = time.monotonic()
    numbers, fine = {"kills": _kills, "tree": _tree, "inputs": _inputs, "long": _long}[args.what](
        args
    )
    numbers["seconds"] = round(time.monotonic() - start)
    print(json.dumps({k: v for k, v in numbers.items() if k != "worst"}))
    outputs.write(args.out, numbers)
    return 0 if fine else 1


def _kills(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    def report(number: int, done: kills.Round) -> None:
        fate = done.message or (f"differs in {done.differing}" if done.differing else "identical")
        print(
            f"{number + 1}/{args.rounds} {done.command}: {', '.join(done.kills)}: {fate}",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        rounds = kills.run(args.rounds, Path(folder), args.seed, report)
    bad = [done for done in rounds if done.differing or done.message]
    numbers = {
        "rounds": len(rounds),
        "kills": sum(len(done.kills) for done in rounds),
        "identical": len(rounds) - len(bad),
        "worst": [done._asdict() for done in bad],
    }
    return numbers, not bad


def _tree(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    def report(done: int) -> None:
        if done // 10**7 > (done - tree.CHUNK * tree.BATCH) // 10**7:
            print(f"{done:,} leaves written", flush=True)

    result = tree.run(args.updates, seed=args.seed, report=report)
    return result._asdict(), not result.drifted and not result.empty


def _inputs(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    def report(outcome: inputs.Outcome) -> None:
        if args.show or outcome.found != "good":
            print(
                f"{outcome.found} ({outcome.seconds:.1f} s) {outcome.what}: {outcome.said}",
                flush=True,
            )

    found = inputs.run(command_lines.all_lines(), calls.all_calls(), report)
    classes = collections.Counter(outcome.found for outcome in found)
    numbers = {
        "inputs": len(found),
        **{name: classes[name] for name in ("good", "late", "traceback", "silent")},
        "worst": [outcome._asdict() for outcome in found if outcome.found != "good"],
    }
    return numbers, not classes["traceback"] and not classes["silent"]


def _long(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    def report(name: str, sample: long.Sample) -> None:
        if int(sample.minutes * 6) % 30 == 0:
            print(f"{name}: {sample._asdict()}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        found = long.run(args.minutes, Path(folder), report)
    grown = [
        name
        for name, result in found.items()
        if result.rss_at_last > 1.1 * result.rss_then
        or result.handles_at_last > result.handles_then
    ]
    return {name: result._asdict() for name, result in found.items()}, not grown


def _count(text: str) -> int:
    try:
        value = int(float(text))
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
