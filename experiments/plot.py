"""Plot finished runs of any agents and methods together: `python -m experiments.plot --help`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis import joint
from experiments.cli import shared
from experiments.cli.options import Parser
from experiments.runs import folder


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)

    def command() -> None:
        runs = _distinct(args.runs)
        summaries = {label: _summary(path) for label, path in runs.items()}
        _check_alike(summaries, args.other_code)
        frames = {label: _metrics(path, summaries[label]) for label, path in runs.items()}
        folder.claim_plot(args.out)
        thresholds = {summary["threshold"] for summary in summaries.values()}
        threshold = thresholds.pop() if len(thresholds) == 1 else None
        title = args.title or _common(list(summaries.values()))
        print(joint.joint(frames, summaries, args.out, title, threshold))

    return shared.ended(parser, command)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m experiments.plot", description=__doc__,
        epilog="Example: python -m experiments.plot racer=runs/a ppo=runs/b --out runs/c",
    )  # fmt: skip
    parser.add_argument(
        "runs", nargs="+", type=_labelled, metavar="LABEL=FOLDER",
        help="folders of finished runs, and their labels in the figures [default: the folder]",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=shared.folder, required=True, help="folder for figures and table"
    )
    parser.add_argument("--title", help="title of the figures [default: agents and environments]")
    parser.add_argument(
        "--other-code", action="store_true",
        help="join results that different versions of the code made",
    )  # fmt: skip
    return parser


def _labelled(text: str) -> tuple[str, Path]:
    label, _, folder = text.rpartition("=")
    return label or Path(folder).name, Path(folder)


def _distinct(runs: Sequence[tuple[str, Path]]) -> dict[str, Path]:
    for number, (label, _) in enumerate(runs):
        if label in dict(runs[:number]):
            raise ValueError(f"two runs are called '{label}': use LABEL=FOLDER")
    return dict(runs)


def _check_alike(summaries: Mapping[str, dict[str, Any]], other_code: bool) -> None:
    """Refuse runs that don't belong into one figure.

    Raises:
      ValueError: one line: their environments differ, or the versions of the code.
    """
    for what, key in (("environments", "env"), ("versions of the code", "code")):
        found = {
            label: summary["env"] if key == "env" else summary.get("versions", {}).get(key, "none")
            for label, summary in summaries.items()
        }
        if len(set(found.values())) > 1 and not (key == "code" and other_code):
            shown = ", ".join(f"{label} {value}" for label, value in found.items())
            mend = "plot each apart" if key == "env" else "train anew, or add --other-code"
            raise ValueError(f"the runs are of different {what} ({shown}): {mend}")


def _summary(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    if not (run / "metrics.csv").exists():
        raise ValueError(f"{run} holds no run: give folders of runs")
    if not path.exists():
        raise ValueError(f"the run in {run} has not ended: finish it with --resume {run}")
    try:
        summary = json.loads(path.read_text())
        missing = {"agent", "env", "seeds", "final_step", "threshold"} - set(summary)
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): --resume {run} writes it anew") from error
    if missing:
        raise ValueError(f"{path} lacks {sorted(missing)[0]}: --resume {run} writes it anew")
    return summary


def _metrics(run: Path, summary: dict[str, Any]) -> pd.DataFrame:
    """Read a run's metrics, and see that they are those of its summary.

    Raises:
      ValueError: rows are missing, doubled or damaged.
    """
    path = run / "metrics.csv"
    try:
        frame = pd.read_csv(path)
        steps = [frame.loc[frame["seed"] == seed, "step"].tolist() for seed in summary["seeds"]]
        whole = len(frame) == sum(map(len, steps)) and all(
            each == steps[0] and sorted(set(each)) == each and each[-1] == summary["final_step"]
            for each in steps
        )
    except (ValueError, KeyError, IndexError) as error:  # pandas' errors are ValueErrors
        raise ValueError(f"{path} is damaged ({error}): restore it") from error
    if not whole:
        raise ValueError(f"{path} has rows that are missing or doubled: restore it")
    return frame


def _common(summaries: Sequence[dict[str, Any]]) -> str:
    """Name the runs' agents and environments."""

    def distinct(key: str) -> str:
        return ", ".join(dict.fromkeys(summary[key] for summary in summaries))

    return f"{distinct('agent')} on {distinct('env')}"


if __name__ == "__main__":
    sys.exit(main())
