"""Figures and tables of prioritized experience replay (Schaul et al. 2016)."""

from experiments.papers import cliffwalk_tables, digits, tasks
from experiments.papers.entry import Arm, Computation, Experiment, Size
from experiments.papers.printed import settings

_TABULAR = ("uniform", "oracle", "greedy", "proportional", "rank", "pser")

CLIFFWALK = Computation(
    "cliffwalk_sizes",
    cliffwalk_tables.updates_by_size,
    {"states": tuple(range(2, 17)), "seeds": 10, "methods": _TABULAR},
    {"states": (2, 3), "seeds": 2, "methods": ("uniform", "proportional")},
    cliffwalk_tables.SOURCES, unit="updates", higher_is_better=False, ratios=True, minutes=12,
)  # fmt: skip


# Learning rate of the baseline, and a quarter of it.
_FULL, _QUARTER = {"learning_rate": 2.5e-4}, {"learning_rate": 2.5e-4 / 4}
_BETA_0, _BETA_1 = {"beta": 0.0, "beta_end": 0.0}, {"beta": 1.0, "beta_end": 1.0}

BETAS = Experiment(
    "minatar_dqn_beta",
    "dqn",
    {
        "uniform": Arm("uniform"),
        "beta_0": Arm("per", _BETA_0, agent_options=_QUARTER),
        "beta_1": Arm("per", _BETA_1, agent_options=_FULL),
    },
    tasks.ONE_GAME,
    Size(("atari/Breakout",), 1, preset="per_proportional"),
)

BETAS_AT_EQUAL_STEPS = Experiment(
    "minatar_dqn_beta_steps",
    "dqn",
    {
        "uniform_quarter": Arm("uniform", agent_options=_QUARTER),
        "beta_0_quarter": Arm("per", _BETA_0, agent_options=_QUARTER),
        "beta_0_full": Arm("per", _BETA_0, agent_options=_FULL),
        "beta_1_full": Arm("per", _BETA_1, agent_options=_FULL),
    },
    tasks.ONE_GAME,
    Size(
        ("atari/Breakout",), 1, preset="per_proportional",
        agent={"rmsprop_eps": 0.01 / 32**2},  # that of the baseline, for all arms
    ),
)  # fmt: skip

SOURCES = (
    CLIFFWALK, BETAS, BETAS_AT_EQUAL_STEPS, digits.DIGITS,
    settings("per", "per_proportional", "per_rank"),
)  # fmt: skip
