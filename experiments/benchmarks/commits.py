"""Do two commits give the same numbers? `python -m experiments.benchmarks.commits --help`.

Each commit is checked out beside this one and runs the same short training runs; their
`metrics.csv` are compared, byte by byte and then number by number. Both use the packages that are
installed here.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.cli.options import Parser, one_of
from experiments.runs.log import say

_SHORT = "--seeds 2 --steps 700 --warmup 300 --eval-every 200 --eval-episodes 2 --inspect 2"
_SMALL = "--agent.hidden 16 --capacity 512 --batch-size 16 --tensorboard false"
_DISCRETE = ("uniform", "per", "rank", "pser", "lap", "pal", "ere", "ero", "ners")


def _named(agent: str, replay: str, more: str = "", small: str = _SMALL) -> str:
    return f"--agent {agent} --replay {replay} {_SHORT} {small} {more}"


RUNS: Mapping[str, str] = MappingProxyType(
    {
        **{f"dqn_{replay}": _named("dqn", replay) for replay in _DISCRETE},
        **{
            f"sac_{replay}": _named("sac", replay, "--env gymnax/Pendulum-v1")
            for replay in ("uniform", "per", "ners", "refer")
        },
        "racer_refer": _named("racer", "refer", "--env gymnax/Pendulum-v1"),
        "dqn_two_lanes": _named("dqn", "per", "--num-envs 2 --learn-every 2 --updates 3"),
        "rainbow_atari": _named(
            "rainbow", "per", "--env atari/Pong --agent.network data_efficient --env.max-steps 100",
            "--capacity 512 --batch-size 16 --tensorboard false",
        ),
        "td3_host": _named("td3", "lap", "--env gymnasium/Pendulum-v1"),
    }
)  # fmt: skip


class Outcome(NamedTuple):
    """How the numbers of two commits differ."""

    identical: bool  # byte for byte
    largest: float  # relative difference of any number, over all log points
    first: float  # the same, at the first log point
    columns: tuple[str, ...]  # that differ, or that only one of them has


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 1 if any number differs."""
    parser = Parser(prog="python -m experiments.benchmarks.commits", description=__doc__)
    parser.add_argument("before", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("after", metavar="COMMIT", nargs="?", help="[default: the working tree]")
    parser.add_argument(
        "--runs", nargs="+", type=one_of("run", RUNS), default=list(RUNS), metavar="NAME",
        help=f"which runs: {', '.join(RUNS)} [default all]",
    )  # fmt: skip
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            before = _checked_out(args.before, Path(scratch) / "before")
            after = _checked_out(args.after, Path(scratch) / "after") if args.after else Path.cwd()
        except ValueError as error:
            parser.error(str(error))
        outcomes = {}
        for name in args.runs:
            say(f"{name}: two runs")
            metrics = [_train(tree, RUNS[name]) for tree in (before, after)]
            outcomes[name] = compare(*metrics)
            print(_line(name, outcomes[name]), flush=True)
        for tree in (before, after if args.after else None):
            if tree is not None:
                _git("worktree", "remove", "--force", str(tree))
    return 0 if all(outcome.identical for outcome in outcomes.values()) else 1


def compare(before: str, after: str) -> Outcome:
    """Compare two `metrics.csv`, given as text."""
    import io

    tables = [pd.read_csv(io.StringIO(text)) for text in (before, after)]
    shared = [column for column in tables[0] if column in tables[1]]
    odd = sorted(set(tables[0]) ^ set(tables[1]))
    if len(tables[0]) != len(tables[1]):
        return Outcome(False, np.inf, np.inf, ("number of rows",))
    gaps = {
        column: _gaps(*(table[column].to_numpy(float) for table in tables)) for column in shared
    }
    head = tables[0]["step"].to_numpy() == tables[0]["step"].min()
    differing = [column for column, gap in gaps.items() if gap.any()]
    return Outcome(
        identical=before == after,
        largest=max(gap.max() for gap in gaps.values()),
        first=max(gap[head].max() for gap in gaps.values()),
        columns=(*differing, *odd),
    )


def _gaps(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return relative differences; NaN in both is none, NaN in one is infinite."""
    gap = np.abs(before - after) / np.maximum(np.maximum(np.abs(before), np.abs(after)), 1e-12)
    none = np.isnan(before) & np.isnan(after)
    return np.where(none, 0.0, np.where(np.isnan(gap), np.inf, gap))


def _line(name: str, outcome: Outcome) -> str:
    if outcome.identical:
        return f"{name:<16} identical"
    shown = ", ".join(outcome.columns[:6]) + (" ..." if len(outcome.columns) > 6 else "")
    return (
        f"{name:<16} differs by {outcome.first:.1e} at the first log point, {outcome.largest:.1e} "
        f"at most: {shown}"
    )


def _train(tree: Path, options: str) -> str:
    """Run `experiments.train` of a tree; return its metrics."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            "-m",
            "experiments.train",
            *options.split(),
            "--out",
            f"{out}/run",
        ]
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return (Path(out) / "run" / "metrics.csv").read_text()


def _checked_out(commit: str, where: Path) -> Path:
    """Check a commit out; refuse what is none."""
    try:
        _git("worktree", "add", "--detach", str(where), commit)
    except subprocess.CalledProcessError as error:
        raise ValueError(
            f"'{commit}' is no commit: {error.stderr.strip().splitlines()[-1]}"
        ) from None
    return where


def _git(*args: str) -> None:
    subprocess.run(["git", *args], check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
