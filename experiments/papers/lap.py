"""Figures and tables of LAP and PAL (Fujimoto, Meger and Precup 2020)."""

from dataclasses import replace

from experiments.papers.entry import (
    Arm,
    Experiment,
    Size,
    named,
)
from experiments.papers.lap_tables import RUN_TIME, THEORY
from experiments.papers.printed import settings
from experiments.studies.options import Question

_TASKS = tuple(
    f"gymnasium/{task}-v5" for task in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")
)
_L1 = {"loss": "l1", "alpha": 0.4, "beta": 0.0, "beta_end": 0.0, "epsilon": 1e-10}
_ARMS = named("uniform", "per", "lap", "pal")
_ABLATED = {
    "huber": Arm("uniform", {"loss": "huber"}),
    "huber_divided": Arm("pal", {"loss": "huber"}),
    "pal_undivided": Arm("pal", {"divide": False}),
    "ere": Arm("ere"),
    "l1_alpha": Arm("per", _L1),
}
_SMALL = Size(
    _TASKS[:1], 10,
    {"steps": 60_000, "warmup": 5_000, "eval_every": 5_000, "eval_episodes": 5},
    {"batch_size": 128, "capacity": 100_000}, {"hidden": (128, 128)},
    note="60 000 agent steps in place of 3 million, networks of 128 units, batches of 128.",
)  # fmt: skip
_PAPER = Size(_TASKS, 10, preset="lap_mujoco")
_QUESTION = Question(primary="last_5", baseline="uniform")

MUJOCO = Experiment(
    "mujoco_td3",
    "td3",
    {**_ARMS, "sac": Arm("uniform", agent="sac")},
    replace(_SMALL, envs=_TASKS[:2], arms=("uniform", "per", "lap")),
    _PAPER,
    _QUESTION,
)
ABLATIONS = Experiment(
    "mujoco_td3_ablations", "td3", {**_ARMS, **_ABLATED}, _SMALL, _PAPER, _QUESTION
)

SOURCES = (
    MUJOCO, ABLATIONS, RUN_TIME, THEORY,
    settings("lap_fig7", "lap_mujoco", parts=("agent",)),
    settings("lap_tab6", "lap_mujoco"),
    settings("lap_tab7", "lap_atari"),
)  # fmt: skip
