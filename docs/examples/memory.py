"""Stored states, zero states and no memory (R2D2, Kapturowski et al. 2019) in a maze with a cue.

`python -m experiments.study docs/examples/memory.py --out runs/memory` compares DQN and R2D2 on
`memory/TMaze-10`, seed by seed, until it is decided. The cue is seen at the first step, and decides
ten steps later. Sequences of 8 steps never hold both: with them, only a state that is stored with
the first step can carry the cue to the junction.
"""

from experiments.statistics.claims import Claim
from experiments.studies.definition import Arm, Study
from experiments.studies.options import Question, StudyOptions

SHORT = {"length": 8, "period": 4, "prioritised": False}
LONG = {"length": 16, "period": 8, "prioritised": False}
ZERO = {"stored_state": False}

study = Study.make(
    "memory/TMaze-10",
    "r2d2",
    {
        "dqn": Arm("uniform", agent="dqn"),
        "short_zero": Arm("sequences", SHORT, agent_options=ZERO),
        "short": Arm("sequences", SHORT),
        "long_zero": Arm("sequences", LONG, agent_options=ZERO),
        "long": Arm("sequences", LONG),
        "prioritised": Arm("sequences", {**LONG, "prioritised": True}),
    },
    seeds="until decided",
    loop={"steps": 20_000, "warmup": 1_000, "eval_every": 2_000, "eval_episodes": 20},
    sizes={"capacity": 20_000, "batch_size": 32},
    agent_options={"learning_rate": 1e-3, "tau": 0.01, "epsilon_updates": 3_000},
    question=Question(
        primary="auc", baseline="long", control=False, until_decided=True, most_seeds=64
    ),
    options=StudyOptions(report=False, figures=True),
    claims=[
        Claim("R2D2 learns better than DQN", "long", "dqn", across=True),
        Claim("short sequences learn better from stored states", "short", "short_zero"),
        Claim("long sequences learn better from stored states", "long", "long_zero"),
        Claim("prioritised sequences learn better", "prioritised", "long"),
    ],
)
