"""Compare the numbers of two commits: `python -m experiments.benchmarks.commits --help`.

Each commit is checked out into a temporary folder and trains the same short runs. Their
`metrics.csv` are compared byte by byte, then number by number. Both commits use the installed
packages.
"""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.cli.options import Parser, one_of
from experiments.runs.log import say, show

_ROOT = Path(__file__).parents[2]
_SHORT = "--seeds 2 --steps 700 --warmup 300 --eval-every 200 --eval-episodes 2 --inspect 2"
_SMALL = "--agent.hidden 16 --capacity 512 --batch-size 16 --tensorboard false"
_DISCRETE = ("uniform", "per", "rank", "pser", "lap", "pal", "ere", "ero", "ners")


def _options(agent: str, replay: str, more: str = "", small: str = _SMALL) -> str:
    return f"--agent {agent} --replay {replay} {_SHORT} {small} {more}"


RUNS: Mapping[str, str] = MappingProxyType(
    {
        **{f"dqn_{replay}": _options("dqn", replay) for replay in _DISCRETE},
        **{
            f"sac_{replay}": _options("sac", replay, "--env gymnax/Pendulum-v1")
            for replay in ("uniform", "per", "ners", "refer")
        },
        "racer_refer": _options("racer", "refer", "--env gymnax/Pendulum-v1"),
        "dqn_two_environments": _options("dqn", "per", "--num-envs 2 --learn-every 2 --updates 3"),
        "rainbow_atari": _options(
            "rainbow", "per", "--env atari/Pong --agent.network data_efficient --env.max-steps 100",
            "--capacity 512 --batch-size 16 --tensorboard false",
        ),
        "td3_host": _options("td3", "lap", "--env gymnasium/Pendulum-v1"),
    }
)  # fmt: skip


class Outcome(NamedTuple):
    """Differences between the numbers of two commits."""

    identical: bool  # byte for byte
    largest: float  # largest relative difference of two numbers, over all log points
    first: float  # the same at the first log point
    columns: tuple[str, ...]  # columns that differ, or that only one commit has


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 1 if any byte differs."""
    parser = Parser(prog="python -m experiments.benchmarks.commits", description=__doc__)
    parser.add_argument("before", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("after", metavar="COMMIT", nargs="?", help="[default: the working tree]")
    parser.add_argument(
        "--runs", nargs="+", type=one_of("run", RUNS), default=list(RUNS), metavar="NAME",
        help=f"runs to train: {', '.join(RUNS)} [default all]",
    )  # fmt: skip
    args = parser.parse_args(argv)
    outcomes = {}
    with contextlib.ExitStack() as stack:
        try:
            before = stack.enter_context(_checked_out(args.before))
            after = stack.enter_context(_checked_out(args.after)) if args.after else _ROOT
        except ValueError as error:
            parser.error(str(error))
        for name in args.runs:
            say(f"{name}: two runs")
            outcomes[name] = compare(*(_train(tree, RUNS[name]) for tree in (before, after)))
            show(_line(name, outcomes[name]))
    return 0 if all(outcome.identical for outcome in outcomes.values()) else 1


def compare(before: str, after: str) -> Outcome:
    """Compare the texts of two `metrics.csv`, row by row."""
    tables = [pd.read_csv(io.StringIO(text)) for text in (before, after)]
    if len(tables[0]) != len(tables[1]):
        return Outcome(False, np.inf, np.inf, ("number of rows",))
    shared = [column for column in tables[0] if column in tables[1]]
    unshared = sorted(set(tables[0]) ^ set(tables[1]))
    gaps = {
        column: _gaps(*(table[column].to_numpy(float) for table in tables)) for column in shared
    }
    at_first = tables[0]["step"].to_numpy() == tables[0]["step"].min()
    differing = [column for column, gap in gaps.items() if gap.any()]
    largest = float(max(gap.max() for gap in gaps.values()))
    first = float(max(gap[at_first].max() for gap in gaps.values()))
    return Outcome(before == after, largest, first, (*differing, *unshared))


def _gaps(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return relative differences: 0 if both are NaN, infinite if only one is."""
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    size = np.maximum(np.maximum(np.abs(before), np.abs(after)), 1e-12)
    with np.errstate(invalid="ignore"):  # of two infinities
        gap = np.abs(before - after) / size
    return np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))


def _line(name: str, outcome: Outcome) -> str:
    if outcome.identical:
        return f"{name:<20} identical"
    shown = ", ".join(outcome.columns[:6]) + (" ..." if len(outcome.columns) > 6 else "")
    gaps = f"{outcome.first:.1e} at the first log point, {outcome.largest:.1e} at most"
    return f"{name:<20} differs by {gaps}: {shown}"


def _train(tree: Path, options: str) -> str:
    """Run `experiments.train` of a checkout; return the text of its `metrics.csv`."""
    with tempfile.TemporaryDirectory() as out:
        run = Path(out) / "run"
        command = [sys.executable, "-m", "experiments.train", *options.split(), "--out", str(run)]
        env = {**os.environ, "PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return (run / "metrics.csv").read_text()


@contextlib.contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder, and remove it at the end.

    Raises:
      ValueError: the commit does not exist.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        try:
            _git("worktree", "add", "--detach", str(tree), commit)
        except subprocess.CalledProcessError as error:
            why = error.stderr.strip().splitlines()[-1]
            raise ValueError(f"'{commit}' is not a commit: {why}") from None
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*args: str) -> None:
    subprocess.run(["git", *args], check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
