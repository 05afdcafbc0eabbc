"""Make one page of runs or of a comparison: `python -m experiments.report --help`.

The page holds everything that the folders do: verdicts, curves, what was replayed, times,
configurations. It is one file that needs no network, and may be made while runs are still going on.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.cli import run_folders, shared
from experiments.cli.options import Parser
from experiments.pages import page, source
from experiments.pages.source import Source


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog="python -m experiments.report", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=run_folders.labelled, metavar="RUN",
        help="folder of a comparison, or folders of runs, FOLDER or LABEL=FOLDER",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=_file, metavar="FILE", help="page, an .html file [default RUN/report.html]"
    )
    parser.add_argument("--title", help="title of the page [default: agent and environment]")
    parser.add_argument(
        "--other-code", action="store_true",
        help="join runs that different versions of the code made",
    )  # fmt: skip
    args = parser.parse_args(argv)

    def command() -> None:
        out = args.out or _default(args.runs)
        page.check_path(out)
        print(page.write(_read(args.runs, args.other_code), out, args.title))

    return shared.ended(parser, command)


def _file(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("the file's name is empty: give one, such as report.html")
    return Path(text)


def _default(runs: Sequence[tuple[str, Path]]) -> Path:
    if len(runs) > 1:
        raise ValueError("several runs have no folder in common: say where with --out FILE.html")
    return runs[0][1] / page.NAME


def _read(runs: Sequence[tuple[str, Path]], other_code: bool) -> Source:
    comparisons = [folder for _, folder in runs if source.is_comparison(folder)]
    if not comparisons:
        return source.runs(run_folders.distinct(runs), other_code)
    if len(runs) > 1:
        raise ValueError(
            f"{comparisons[0]} is a comparison, which has a page of its own: leave out the others"
        )
    return source.comparison(comparisons[0])


if __name__ == "__main__":
    sys.exit(main())
