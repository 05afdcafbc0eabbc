"""Compare the numbers and the times of two commits: `python -m experiments.benchmarks.commits`.

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
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from experiments.cli.parser import Parser, one_of
from experiments.runs.log import say, show

_ROOT = Path(__file__).parents[2]
_SHORT = "--seeds 2 --steps 700 --warmup 300 --eval-every 200 --eval-episodes 2 --inspect 2"
_SMALL = "--capacity 512 --batch-size 16 --tensorboard false"
_MLP = "--agent.hidden 16"
_DISCRETE = ("uniform", "per", "rank", "pser", "lap", "pal", "ere", "ero", "ners")
_PENDULUM = "--env gymnax/Pendulum-v1"
RUNS: Mapping[str, str] = MappingProxyType(
    {
        **{f"dqn_{replay}": f"--agent dqn --replay {replay} {_MLP}" for replay in _DISCRETE},
        **{
            f"sac_{replay}": f"--agent sac --replay {replay} {_PENDULUM} {_MLP}"
            for replay in ("uniform", "per", "ners", "refer")
        },
        "racer_refer": f"--agent racer --replay refer {_PENDULUM} {_MLP}",
        "dqn_two_environments": "--agent dqn --replay per --num-envs 2 --learn-every 2 --updates 3",
        "rainbow_atari": "--agent rainbow --replay per --env atari/Pong --env.max-steps 100 "
        "--agent.network data_efficient",
        "td3_host": f"--agent td3 --replay lap --env gymnasium/Pendulum-v1 {_MLP}",
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 1 if any byte differs."""
    parser = Parser(prog="python -m experiments.benchmarks.commits", description=__doc__)
    parser.add_argument("before", metavar="COMMIT", help="the earlier commit")
    parser.add_argument(
        "after", metavar="COMMIT", nargs="?", help="the later commit [default: the working tree]"
    )
    parser.add_argument(
        "--runs", nargs="+", type=one_of("run", RUNS), default=list(RUNS), metavar="NAME",
        help=f"runs to train: {', '.join(RUNS)} [default all]",
    )  # fmt: skip
    args = parser.parse_args(argv)
    identical = True
    with contextlib.ExitStack() as stack:
        try:
            before = stack.enter_context(_checked_out(args.before))
            after = stack.enter_context(_checked_out(args.after)) if args.after else _ROOT
        except ValueError as error:
            parser.error(str(error))
        for name in args.runs:
            say(f"{name}: two runs")
            (first, first_seconds), (second, second_seconds) = (
                _train(tree, RUNS[name]) for tree in (before, after)
            )
            identical &= first == second
            gaps = list(compare(first, second).items())[:6]
            worst = ", ".join(f"{column} {gap:.1e}" for column, gap in gaps) or "in its text alone"
            verdict = "identical" if first == second else f"differs: {worst}"
            show(f"{name:<20} {first_seconds:.1f} s, {second_seconds:.1f} s, {verdict}")
    return 0 if identical else 1


def compare(before: str, after: str) -> dict[str, float]:
    """Return the largest relative difference of each column of two `metrics.csv`, largest first.

    Columns without differences are left out. A difference is infinite if only one number is NaN, or
    only one table has the column. Tables with different numbers of rows give {"step": infinity}.
    """
    tables = [pd.read_csv(io.StringIO(text)) for text in (before, after)]
    if len(tables[0]) != len(tables[1]):
        return {"step": np.inf}
    gaps = dict.fromkeys(set(tables[0]) ^ set(tables[1]), np.inf)
    for column in set(tables[0]) & set(tables[1]):
        old, new = (table[column].to_numpy(float) for table in tables)
        same = (old == new) | (np.isnan(old) & np.isnan(new))
        with np.errstate(invalid="ignore"):  # of two infinities
            gap = np.abs(old - new) / np.maximum(np.maximum(np.abs(old), np.abs(new)), 1e-12)
        gaps[column] = float(np.where(same, 0.0, np.nan_to_num(gap, nan=np.inf)).max())
    differing = [(column, gap) for column, gap in gaps.items() if gap > 0]
    return dict(sorted(differing, key=lambda pair: (-pair[1], pair[0])))


def _train(tree: Path, options: str) -> tuple[str, float]:
    """Run `experiments.train` of a checkout; return the text of its `metrics.csv`, and seconds."""
    with tempfile.TemporaryDirectory() as out:
        run, words = Path(out) / "run", f"{_SHORT} {_SMALL} {options}".split()
        command = [sys.executable, "-m", "experiments.train", *words, "--out", str(run)]
        env = {**os.environ, "PYTHONPATH": str(tree)}
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return (run / "metrics.csv").read_text(), time.perf_counter() - begin


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
    subprocess.run(["git", *args], check=True, capture_output=True, text=True, cwd=_ROOT)


if __name__ == "__main__":
    sys.exit(main())
