"""Figures and tables of the neural experience replay sampler, NERS (Oh et al. 2021).

NERS learns at evaluations, and ERO and NERS* at the ends of training episodes, each only if the
return differs from the previous one. On Pendulum*, where most early episodes return 0, ERO learned
246 times and NERS* 188 times in 540 episodes (`experiments/results/sparse_pendulum_td3`). A learned
sampler with fewer than 500 updates counts as not tested. Small sizes are long enough for 500
updates, except those of entries whose notes say otherwise.
"""

from experiments.papers import sampled
from experiments.papers.entry import (
    Arm,
    Computation,
    Experiment,
    Options,
    Size,
    named,
)
from experiments.studies.options import Question

_PENDULUM = "sparse_pendulum/Pendulum-v0"
_LANDER, _WALKER = "gymnasium/LunarLanderContinuous-v3", "gymnasium/BipedalWalker-v3"
_GAMES = tuple(
    f"atari/{game}"
    for game in (
        "Alien", "Amidar", "Assault", "Asterix", "BattleZone", "Boxing", "ChopperCommand",
        "Freeway", "Frostbite", "KungFuMaster", "MsPacman", "Pong", "PrivateEye", "Qbert",
        "RoadRunner", "Seaquest",
    )
)  # fmt: skip

_NERS: Options = {"weigh_actor": True}  # Alg. 1
_STAR: Options = {**_NERS, "reward": "training"}
_METHODS = {**named("uniform", "per", "ero"), "ners": Arm("ners", _NERS)}
# Fig. 4a: the features of ERO, and scores that do not depend on the rest of the batch.
_ABLATED = {
    "few_features": Arm("ners", {**_NERS, "features": ("reward", "td_error", "time")}),
    "no_context": Arm("ners", {**_NERS, "global_context": False}),
}
_REPLAYED = ("replayed/abs_td", "replayed/q_value", "replayed/td_std", "replayed/q_std")

# The interval `observe_every` gives NERS more than 500 evaluations to learn from.
_LOOP: Options = {
    "warmup": 2_000, "random_warmup": True, "eval_every": 5_000, "eval_episodes": 10,
    "observe_every": 200,
}  # fmt: skip
_PAPER: Options = {"observe_every": 500}  # with 1 000, as in the preset: 474 evaluations


def _pendulum(every: int, words: str) -> Size:
    """Return size small on Pendulum*, with an update per `every` steps (`words` in the note)."""
    return Size(
        (_PENDULUM,), 10, {**_LOOP, "steps": 230_000, "learn_every": every}, {"batch_size": 128},
        {"hidden": (64, 64)},
        note=f"230 000 agent steps in place of 500 000, an update per {words}, 64 units, batches "
        "of 128.",
    )  # fmt: skip


PENDULUM_TD3 = Experiment(
    "sparse_pendulum_td3",
    "td3",
    {
        **_METHODS,
        "ners_star": Arm("ners", _STAR),
        "lap": Arm("lap", {"alpha": 0.6, "kappa": 0.01}),
    },
    _pendulum(4, "four"),
    Size((_PENDULUM,), 5, _PAPER, preset="ners_td3"),
    Question(baseline="uniform"),
    _REPLAYED,
)

CONTINUOUS_SAC = Experiment(
    "sparse_pendulum_sac",
    "sac",
    {**_METHODS, "ners_star": Arm("ners", _STAR), **_ABLATED},
    _pendulum(8, "eight"),
    Size((_PENDULUM, _LANDER, _WALKER), 5, _PAPER, preset="ners_sac"),
    Question(baseline="uniform"),
    _REPLAYED,
)

# Five seeds are too few for a verdict and therefore need no control.
_PILOT = Question(baseline="uniform", control=False)

BOX2D = Experiment(
    "box2d_td3",
    "td3",
    _METHODS,
    Size(
        (_LANDER,), 5,
        {"steps": 210_000, "warmup": 5_000, "learn_every": 2, "eval_every": 10_000,
         "eval_episodes": 5, "observe_every": 400},
        {"batch_size": 128}, {"hidden": (64, 64), "critic_learning_rate": 1e-3},
        # With episodes of up to 1 000 steps, spent hovering, ERO would make only 205 updates.
        {"max_steps": 400},
        note="Episodes of 400 steps at most, 210 000 agent steps in place of 500 000, an "
        "update per two, 64 units, batches of 128.",
    ),
    Size((_LANDER, _WALKER), 5, _PAPER, preset="ners_td3"),
    _PILOT,
)  # fmt: skip

MUJOCO = Experiment(
    "mujoco_td3_ners",
    "td3",
    _METHODS,
    Size(
        ("gymnasium/Hopper-v5",), 5,
        {"steps": 60_000, "warmup": 5_000, "eval_every": 5_000, "eval_episodes": 3,
         "observe_every": 100},
        {"batch_size": 128, "capacity": 100_000}, {"hidden": (128, 128)},
        arms=("uniform", "per", "ners"),
        note="60 000 agent steps in place of 500 000, 128 units, batches of 128.",
    ),
    Size(
        tuple(f"gymnasium/{task}-v5" for task in ("Ant", "Walker2d", "Hopper")), 5, _PAPER,
        preset="ners_td3",
    ),
    _PILOT,
)  # fmt: skip

ATARI = Experiment(
    "atari_rainbow_ners",
    "rainbow",
    {**_METHODS, "ners": Arm("ners")},
    Size(
        ("atari/Freeway",), 2, {"steps": 12_000, "eval_episodes": 2}, {"capacity": 12_000},
        preset="ners_rainbow",
        note="One game and 12 000 agent steps in place of 16 games and 100 000.",
    ),
    Size(_GAMES, 5, preset="ners_rainbow"),
    _PILOT,
    smoke={"envs": ("gymnax/CartPole-v1",)},
)  # fmt: skip

# Tab. 3: 9 000 steps after 1 000 steps with random actions.
_SHORT: Options = {
    "steps": 10_000, "warmup": 1_000, "random_warmup": True, "eval_every": 1_000,
    "eval_episodes": 5, "observe_every": 16,
}  # fmt: skip
PENDULUM_SAC = Experiment(
    "pendulum_sac_ners",
    "sac",
    _METHODS,
    Size(
        ("gymnax/Pendulum-v1",), 10, _SHORT, {"batch_size": 128}, {"hidden": (128, 128)},
        note="The paper's steps, with 128 units and batches of 128.",
    ),
    Size(("gymnax/Pendulum-v1",), 5, _SHORT, preset="ners_sac"),
    Question(baseline="uniform"),
    _REPLAYED,
)  # fmt: skip

SAMPLED = Computation(
    "ners_sampled", sampled.sampled_states,
    {"steps": 30_000, "seed": 0, "drawn": 64, "shown": 10, "hidden": (256, 256)},
    {"steps": 1_200, "drawn": 16, "hidden": (8, 8)}, sampled.SOURCES, minutes=6,
)  # fmt: skip

SOURCES = (
    PENDULUM_TD3, CONTINUOUS_SAC, BOX2D, MUJOCO, ATARI, PENDULUM_SAC, SAMPLED,
)  # fmt: skip
