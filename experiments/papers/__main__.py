"""Reproduce figures of the papers: `python -m experiments.papers list`, or `run FIGURE ...`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from experiments.cli.options import Parser, one_of
from experiments.papers import cliffwalk_figures
from experiments.papers.cliffwalk_figures import Request
from experiments.runs.log import say


class Entry(NamedTuple):
    """One figure: what it shows, and the function that writes it."""

    shows: str
    plot: Callable[[Request], list[Path]]


FIGURES: Mapping[str, Entry] = MappingProxyType(
    {
        "per.fig1": Entry(
            "Schaul et al. 2016, Fig. 1: Blind Cliffwalk, updates against memory size",
            cliffwalk_figures.updates_by_size,
        ),
        "pser.fig2": Entry(
            "Brittain et al. 2019, Fig. 2: Blind Cliffwalk, squared error against updates",
            cliffwalk_figures.error_by_updates,
        ),
        "pser.fig3": Entry(
            "Brittain et al. 2019, Theorem 1: expected updates, formulas beside simulations",
            cliffwalk_figures.expected_updates,
        ),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog="python -m experiments.papers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    commands.add_parser("list", help="list the figures")
    run = commands.add_parser("run", help="plot figures, and write the numbers behind them")
    run.add_argument("figures", nargs="+", type=one_of("figure", FIGURES), metavar="FIGURE")
    run.add_argument(
        "--states", type=int, default=16, metavar="INT",
        help="largest number of Cliffwalk states, 2 to 16 [default 16]",
    )  # fmt: skip
    run.add_argument("--seeds", type=int, default=10, metavar="INT", help="seeds [default 10]")
    run.add_argument(
        "--out", type=Path, default=Path("runs/papers"), metavar="DIR",
        help="folder for the figures, which are overwritten; numbers of per.fig1 that are already "
        "there are kept [default runs/papers]",
    )  # fmt: skip
    run.add_argument(
        "--overwrite", action="store_true",
        help="compute all numbers again, including those already in --out",
    )  # fmt: skip
    run.add_argument(
        "--other-code", action="store_true",
        help="keep numbers that another version of the code made",
    )  # fmt: skip
    args = parser.parse_args(argv)
    if args.command == "list":
        for name, entry in FIGURES.items():
            print(f"{name:<12} {entry.shows}")
        return 0
    if not 2 <= args.states <= 16:
        parser.error(f"states is {args.states}: use 2 to 16")
    if args.seeds < 2:
        parser.error(f"seeds is {args.seeds}: use 2 or more")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.figures:
        if args.overwrite:
            (args.out / f"{name}.csv").unlink(missing_ok=True)
        request = Request(args.out, args.states, args.seeds, say, args.other_code)
        try:
            written = FIGURES[name].plot(request)
        except ValueError as error:
            parser.error(str(error))
        print(f"{name}: {' '.join(map(str, written))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
