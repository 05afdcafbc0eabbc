"""Make one page of runs, a comparison or a sweep: `python -m experiments.report --help`.

The page holds everything that the folders do: verdicts, curves, what was replayed, times,
configurations; of a sweep, best settings and what scores depend on. It is one file that needs no
network, and may be made while runs are still going on.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.cli import run_folders, shared
from experiments.cli.options import Parser
from experiments.pages import page, source, swept
from experiments.pages.source import Source
from experiments.pages.swept import Swept


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog="python -m experiments.report", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=run_folders.labelled, metavar="RUN",
        help="folder of a comparison or a sweep, or folders of runs, FOLDER or LABEL=FOLDER",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=_file, metavar="FILE", help="page, an .html file [default RUN/report.html]"
    )
    parser.add_argument("--title", help="title of the page [default: agent and environment]")
    parser.add_argument(
        "--other-code", action="store_true",
        help="join runs that different versions of the code, or settings of JAX, made",
    )  # fmt: skip
    args = parser.parse_args(argv)

    def command() -> None:
        out = args.out or _default(args.runs)
        page.check_path(out)
        print(page.write(_read(args.runs, args.other_code), out, args.title))

    return shared.ended(parser, command, "give the same command again")


def _file(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("the file's name is empty: give one, such as report.html")
    return Path(text)


def _default(runs: Sequence[tuple[str, Path]]) -> Path:
    if len(runs) > 1:
        raise ValueError("several runs have no folder in common: say where with --out FILE.html")
    return runs[0][1] / page.NAME


def _read(runs: Sequence[tuple[str, Path]], other_code: bool) -> Source | Swept:
    for _, folder in runs:
        for kind, known in (("comparison", source.is_comparison), ("sweep", swept.is_sweep)):
            if known(folder) and len(runs) > 1:
                raise ValueError(
                    f"{folder} is a {kind}, which has a page of its own: leave out the others"
                )
    first = runs[0][1]
    if swept.is_sweep(first):
        return swept.read(first)
    if source.is_comparison(first):
        return source.comparison(first)
    return source.runs(run_folders.distinct(runs), other_code)


if __name__ == "__main__":
    sys.exit(main())
