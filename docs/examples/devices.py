"""One run on four devices, compared with one device at equal totals, seed by seed.

`XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m experiments.study
docs/examples/devices.py --out runs/devices` divides environments, replay and batches over four
virtual devices of a CPU: slower than one, with the same learning.
"""

from experiments.statistics.claims import Claim
from experiments.studies.definition import Study
from experiments.studies.options import Question, StudyOptions

ONE, FOUR = "per mesh=1", "per mesh=4"
study = Study.make(
    ["walk/10", "gymnax/CartPole-v1"],
    "dqn",
    ["per"],
    seeds="until decided",
    loop={
        "steps": 12_000, "n_step": 3, "eval_every": 1_000, "eval_episodes": 2, "inspect": 0,
    },
    sizes={"num_envs": 4, "batch_size": 64, "capacity": 12_000},
    agent_options={
        "hidden": (64, 64), "learning_rate": 1e-3, "tau": 0.01, "epsilon_updates": 2_000,
    },
    grid={"mesh": [1, 4]},
    question=Question(primary="auc", control=False, most_seeds=512),
    options=StudyOptions(keep=("replayed/effective_buffer",), report=False),
    claims=[
        Claim(f"four devices beat one on {env}", FOUR, ONE, where={"env": env}, across=True)
        for env in ("walk/10", "gymnax/CartPole-v1")
    ],
)  # fmt: skip
