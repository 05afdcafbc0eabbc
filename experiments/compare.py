"""Compare replay methods with one agent: `python -m experiments.compare --help`.

Every method trains with the same seeds and is compared with the baseline, seed by seed, by the
metric that `--primary` names before anything runs. A method may appear several times under
different labels: `--replays ners ners_star=ners --ners_star.reward training`. Several values of
`--learn-every` compare the methods at several replay ratios. `--until-decided true` adds seeds
until every arm is decided.
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.compare")

import sys
from collections.abc import Sequence

from experiments.statistics.counts import FEWEST_SEEDS
from experiments.studies.options import Question
from experiments.study import Front, command

FRONT = Front(
    "python -m experiments.compare",
    __doc__.replace(": `python -m experiments.compare --help`", ""),
    {
        "what runs": ("--agent", "--replays", "--envs", "--preset", "--seeds"),
        "the question": ("--primary", "--baseline", "--control", "--until-decided"),
        "how long, and how often it learns and is evaluated": (
            "--steps", "--warmup", "--learn-every", "--batch-size", "--eval-every",
        ),
        "results": ("--out", "--resume", "--overwrite"),
    },
    (
        "python -m experiments.compare --agent dqn --env gymnax/CartPole-v1 --seeds 10 "
        "--replays uniform per lap --out runs/y",
        "python -m experiments.compare --replays per soft=per --soft.alpha 0.3 --learn-every 1 4",
    ),
    Question(),
    "compare-{agent}-{env}",
    seeds=FEWEST_SEEDS,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return command(FRONT, sys.argv[1:] if argv is None else argv)
