"""Train one agent with one replay method: `python -m experiments.train --help`."""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.train")

import sys
from collections.abc import Sequence

from experiments.studies.options import Question, StudyOptions
from experiments.study import Front, command

FRONT = Front(
    "python -m experiments.train",
    "Train one agent with one replay method.",
    {
        "what to run": ("--agent", "--replay", "--env", "--preset", "--seeds", "--seed"),
        "length, and frequency of updates and evaluations": (
            "--steps", "--warmup", "--learn-every", "--n-step", "--batch-size", "--capacity",
            "--eval-every", "--eval-episodes",
        ),
        "results": ("--out", "--resume", "--overwrite", "--wandb", "--compilation-cache"),
    },
    (
        "python -m experiments.train --agent dqn --replay per --env walk/10 --out runs/x",
        "python -m experiments.train --agent td3 --replay lap --replay.kappa 0.5 --env brax/ant",
        "python -m experiments.train --agent td3 --env brax/ant --help agent",
    ),
    Question(control=False),
    "{agent}-{replay}-{env}",
    single=True,
    options=StudyOptions(report=False),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return command(FRONT, sys.argv[1:] if argv is None else argv)
