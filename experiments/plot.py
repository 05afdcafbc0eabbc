"""Plot finished runs of any agents and methods together: `python -m experiments.plot --help`."""

import sys
from collections.abc import Sequence
from typing import Any

from experiments.analysis import joint
from experiments.cli import run_folders, shared
from experiments.cli.options import Parser
from experiments.runs import checksums, folder, results
from experiments.runs.log import say


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)

    def command() -> None:
        runs = run_folders.distinct(args.runs)
        summaries = {label: results.read_summary(path) for label, path in runs.items()}
        made = {label: results.made(summary) for label, summary in summaries.items()}
        results.check_alike(made, args.other_code)
        frames = {
            label: results.read_metrics(path, summaries[label]) for label, path in runs.items()
        }
        for label, path in runs.items():
            times, odd = results.read_times(path / "timing.csv")
            summaries[label], more = results.recomputed(
                summaries[label], frames[label], times, path / "summary.json"
            )
            for remark in (*checksums.differing(path), *odd, *more):
                say(remark)
        folder.claim_kind(args.out, "plot", overwrite=args.overwrite)
        thresholds = {summary["threshold"] for summary in summaries.values()}
        threshold = thresholds.pop() if len(thresholds) == 1 else None
        title = args.title or _common(list(summaries.values()))
        print(joint.joint(frames, summaries, args.out, title, threshold))

    return shared.ended(parser, command, "give the same command again")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m experiments.plot", description=__doc__,
        epilog="Example: python -m experiments.plot racer=runs/a ppo=runs/b --out runs/c",
    )  # fmt: skip
    parser.add_argument(
        "runs", nargs="+", type=run_folders.labelled, metavar="LABEL=FOLDER",
        help="folders of finished runs, and their labels in the figures [default: the folder]",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=shared.folder, required=True, help="folder for figures and table"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="draw anew what --out holds of a plot"
    )
    parser.add_argument("--title", help="title of the figures [default: agents and environments]")
    parser.add_argument(
        "--other-code", action="store_true",
        help="join results that different versions of the code, or settings of JAX, made",
    )  # fmt: skip
    return parser


def _common(summaries: Sequence[dict[str, Any]]) -> str:
    """Name the runs' agents and environments."""

    def distinct(key: str) -> str:
        return ", ".join(dict.fromkeys(summary[key] for summary in summaries))

    return f"{distinct('agent')} on {distinct('env')}"


if __name__ == "__main__":
    sys.exit(main())
