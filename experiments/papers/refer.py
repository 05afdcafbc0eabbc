"""Figures and tables of ReF-ER and RACER (Novati and Koumoutsakos 2019)."""

from typing import Any

from experiments.environments import packages
from experiments.papers.entry import Arm, Experiment, Options, Size
from experiments.papers.printed import settings
from experiments.runs.presets import PRESETS
from experiments.studies.options import Question

_CLIPS = (2, 4, 8)  # C
_SMALL_ENV = ("gymnax/Pendulum-v1",)
_TASKS = tuple(
    f"gymnasium/{name}-v5"
    for name in (
        "Ant", "HalfCheetah", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum",
        "InvertedPendulum", "Swimmer", "Walker2d",
    )
)  # fmt: skip
# The rate of beta equals the learning rate, 1e-3 at size small.
_BETA: Options = {"beta_rate": 1e-3}
_RACER: Options = {"hidden": (64, 64), "learning_rate": 1e-3}
_COLUMNS = ("agent/kl", "replay/beta", "replay/far_share", "train_return")


# Uniform replay of finished episodes without constraints on the policy, which measures the KL.
_OFF: Options = {"reject": False, "penalise": False, "forget": "oldest"}


def _small(
    steps: int, memory: int, agent: Options, note: str, most_seeds: int = 0, **more: Any
) -> Size:
    """Return size small on Pendulum."""
    loop = {
        "gamma": 0.98, "warmup": 1_000, "eval_every": max(1_000, steps // 40), "inspect": 0,
        "steps": steps,
    }  # fmt: skip
    return Size(
        _SMALL_ENV, 8 if most_seeds else 10, loop, {"capacity": memory}, agent, replay=_BETA,
        note=note, most_seeds=most_seeds, **more,
    )  # fmt: skip


_MEMORY = 2**13  # capacity in steps: a third of training, in the paper a twentieth
_TIMES = {"_half": 0.5, "": 1.0, "_twice": 2.0}  # suffix of an arm -> factor of the capacity
_GRID = {
    f"C{clip}{name}": Arm("refer", {"clip": float(clip)}, memory=times)
    for clip in _CLIPS
    for name, times in _TIMES.items()
}
_OTHERS = {
    "ppo": Arm(
        "latest", agent="ppo", loop={"warmup": 2_048, "learn_every": 2_048},
        sizes={"num_envs": 1, "capacity": 2_048, "batch_size": 2_048},
    ),
    "acer": Arm(
        "windows", {"length": 16}, agent="acer", loop={"warmup": 1_000},
        sizes={"capacity": 100_000},
    ),
}  # fmt: skip

# A preset is for one agent; the agents' defaults are the paper's settings.
_PAPER_GRID = Size(_TASKS, 5, PRESETS["refer_racer"].loop, {"capacity": 2**19})

GRID = Experiment(
    "racer_grid",
    "racer",
    {**_GRID, **_OTHERS},
    _small(
        25_000, _MEMORY, {**_RACER, "actor_learning_rate": 3e-4, "critic_learning_rate": 1e-3},
        "Learning rates are ten times the paper's (PPO and ACER: three times), for 400 times fewer "
        "steps.", most_seeds=64,
    ),
    _PAPER_GRID,
    Question(baseline="C4"),
    _COLUMNS,
)  # fmt: skip

# In the grid's 25 000 steps, PPO makes only twelve updates.
LONGER = Experiment(
    "racer_longer",
    "racer",
    {"C4": _GRID["C4"], "ppo": _OTHERS["ppo"]},
    _small(
        400_000, 2**14,
        {**_RACER, "actor_learning_rate": 3e-4, "critic_learning_rate": 1e-3},
        "Learning rates are ten times the paper's (PPO: three times), for 25 times fewer steps.",
    ),
    _PAPER_GRID,
    Question(baseline="C4", control=False),
    _COLUMNS,
    smoke={  # PPO's first update follows 2048 steps of warm-up and 2048 others
        "loop": {"gamma": 0.98, "steps": 4_500, "warmup": 300, "eval_every": 450,
                 "eval_episodes": 1, "inspect": 0},
    },
)  # fmt: skip

# First claim in the text of the paper: without ReF-ER, RACER diverges.
PLAIN = Experiment(
    "racer_plain",
    "racer",
    {"refer": Arm("refer"), "plain": Arm("refer", _OFF)},
    _small(
        25_000, _MEMORY, _RACER,
        "The learning rate is 1e-3, ten times the paper's, for 400 times fewer steps.",
    ),
    Size(_TASKS, 5, preset="refer_racer"),
    Question(baseline="plain"),
    _COLUMNS,
)  # fmt: skip

# Each arm changes one setting; F is learn_every / updates.
_FORMS = {
    f"A_{form}": Arm("refer", agent_options={"advantage": form})
    for form in ("sg", "quadratic", "none")
}
_TOLERANCES = {f"D_{target:g}": Arm("refer", {"target": target}) for target in (0.05, 0.2, 0.4)}
_BATCHES = {f"B_{size}": Arm("refer", sizes={"batch_size": size}) for size in (64, 128, 512)}
_RATIOS = {
    "F_0.5": Arm("refer", loop={"updates": 2}),
    "F_2": Arm("refer", loop={"learn_every": 2}),
    "F_4": Arm("refer", loop={"learn_every": 4}),
}
_RATES = {
    f"eta_{rate}": Arm("refer", agent_options={"learning_rate": float(rate)})
    for rate in ("3e-5", "1e-4", "3e-4", "1e-3", "3e-3")
}
_ABLATED = ("baseline", *_FORMS, *_TOLERANCES, *_BATCHES, *_RATIOS)

ABLATIONS = Experiment(
    "racer_ablations",
    "racer",
    {"baseline": Arm("refer"), **_FORMS, **_TOLERANCES, **_BATCHES, **_RATIOS, **_RATES},
    _small(
        25_000, _MEMORY, _RACER,
        "The baseline's learning rate is 1e-3, ten times the paper's, for 400 times fewer steps.",
        arms=(*_ABLATED, "eta_1e-4", "eta_3e-4", "eta_3e-3"),
    ),
    Size(_TASKS, 5, preset="refer_racer", arms=(*_ABLATED, "eta_3e-5", "eta_3e-4", "eta_1e-3")),
    Question(baseline="baseline"),
    _COLUMNS,
)  # fmt: skip

# Settings of the authors' code for both agents.
_RANK: Options = {"alpha": 0.5, "beta": 0.5, "normalise": "buffer", "weigh_actor": True}
_WALK: Options = {"noise": "ou"}
_FREE: Options = {"bounded": False, "noise": "gaussian"}
_ANNEALED: Options = {"anneal": 5e-7}
_BOTH_RATES: Options = {
    "hidden": (64, 64), "actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3,
}  # fmt: skip

DDPG = Experiment(
    "ddpg_refer",
    "ddpg",
    {
        "ddpg": Arm("uniform", agent_options={"bounded": True, **_WALK}),
        "ddpg_rank": Arm(
            "rank", {**_RANK, "beta_end": 0.5}, agent_options={"bounded": True, **_WALK}
        ),
        "u_ddpg": Arm("uniform", agent_options={"bounded": False, **_WALK}),
        **{
            f"u_ddpg_C{clip}": Arm(
                "refer", {"clip": float(clip)}, agent_options={**_FREE, **_ANNEALED}
            )
            for clip in reversed(_CLIPS)
        },
        "ddpg_measured": Arm(
            "refer", _OFF, agent_options={"bounded": True, "noise": "gaussian", "anneal": 0.0}
        ),
        "u_ddpg_measured": Arm("refer", _OFF, agent_options={**_FREE, "anneal": 0.0}),
    },
    _small(
        32_000, 2**14, _BOTH_RATES,
        "Learning rates of 1e-3, a hundred times the paper's for the actor and ten times for the "
        "critic, for 300 times fewer steps.", most_seeds=64,
    ),
    Size(_TASKS, 5, preset="refer_ddpg"),
    Question(baseline="ddpg"),
    _COLUMNS,
)  # fmt: skip

NAF = Experiment(
    "naf_refer",
    "naf",
    {
        "uniform": Arm("uniform"),
        "rank": Arm("rank", _RANK),
        **{
            f"C{clip}": Arm("refer", {"clip": float(clip)}, agent_options=_ANNEALED)
            for clip in reversed(_CLIPS)
        },
    },
    _small(
        40_000, 2**14, _RACER,
        "A learning rate of 1e-3, ten times the paper's, for 250 times fewer steps.", most_seeds=64,
    ),
    Size(_TASKS, 5, preset="refer_naf"),
    Question(baseline="uniform"),
    _COLUMNS,
)  # fmt: skip


def _control_suite(name: str, agent: str, arm: Arm, small: Options) -> Experiment:
    """Return the experiment of one agent on DeepMind Control, with a single arm."""
    return Experiment(
        name,
        agent,
        {"refer": arm},
        Size(
            ("playground/CartpoleSwingup",), 10,
            {"gamma": 0.99, "steps": 40_000, "warmup": 2_000, "eval_every": 4_000,
             "eval_episodes": 1, "inspect": 0},
            {"capacity": 2**14}, small, replay=_BETA,
            note="One task of the suite: MuJoCo in JAX is slow without an accelerator.",
        ),
        Size(
            tuple(f"playground/{task}" for task in packages.PLAYGROUND), 5, preset=f"refer_{agent}"
        ),
        Question(control=False),
        _COLUMNS,
    )  # fmt: skip


CONTROL_RACER = _control_suite("control_racer", "racer", Arm("refer"), _RACER)
CONTROL_DDPG = _control_suite(
    "control_ddpg", "ddpg", Arm("refer", agent_options={**_FREE, **_ANNEALED}), _BOTH_RATES
)

SOURCES = (
    GRID, LONGER, PLAIN, ABLATIONS, DDPG, NAF, CONTROL_RACER, CONTROL_DDPG,
    settings("refer", "refer_racer", "refer_ddpg", "refer_naf", "refer_acer", "refer_ppo"),
)  # fmt: skip
