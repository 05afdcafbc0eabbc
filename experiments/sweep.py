"""Sweep methods, settings, tasks and seeds: `python -m experiments.sweep --help`.

`--grid replay.alpha=0.2,0.4 agent.learning_rate=1e-4,3e-4` runs every combination. Settings are
named as on the command line: `replay.NAME` for every method that has it, `LABEL.NAME` for one
method only. Seeds, and all settings that can be traced, share one compiled program.
With `--together true`, only the n-th values of all settings are combined with one another.
`--until-decided true` adds seeds until every arm is decided. `--file sweep.toml` reads the same
names from a file, and the grid from a table [grid].
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.sweep")

import sys
from collections.abc import Sequence

from experiments.studies.options import Question
from experiments.study import Front, command

FRONT = Front(
    "python -m experiments.sweep",
    __doc__.replace(": `python -m experiments.sweep --help`", ""),
    {
        "what runs": (
            "--agent", "--replays", "--envs", "--grid", "--seeds", "--steps",
        ),
        "the question": ("--primary", "--until-decided"),
        "where it runs": ("--dry-run", "--on"),
        "results": ("--out", "--resume", "--overwrite"),
    },
    (
        "python -m experiments.sweep --agent dqn --replays uniform per --seeds 10 "
        "--grid replay.alpha=0.2,0.4,0.6 --out runs/s",
        "python -m experiments.sweep --file sweep.toml --dry-run",
    ),
    Question(control=False),
    "sweep",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return command(FRONT, sys.argv[1:] if argv is None else argv)
