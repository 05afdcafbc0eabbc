"""Figures and tables of the neural experience replay sampler, NERS (Oh et al. 2021).

NERS learns at evaluations, and ERO and NERS* at the ends of training episodes, each only if the
return differs from the previous one. On Pendulum*, where most early episodes return 0, ERO learned
246 times and NERS* 188 times in 540 episodes (`experiments/results/sparse_pendulum_td3`). A learned
sampler with fewer than 500 updates counts as not tested. Small sizes are long enough for 500
updates, except those of entries whose notes say otherwise.
"""

from experiments.papers import layouts, sampled
from experiments.papers.entry import (
    Arm,
    Computation,
    Entry,
    Experiment,
    Layout,
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
_COMPARED = tuple(_METHODS)
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


_CURVES = Layout(layouts.lines, {"aggregate": "mean, std"})


def _over_time(column: str, label: str) -> Layout:
    return Layout(
        layouts.lines, {"y": f"replayed/{column}", "y_label": label, "aggregate": "mean, std"}
    )


_SETTINGS = (
    "settings of the agents, alpha, beta, and size and step size of NERS's networks are not "
    "printed: the presets say what stands in for them."
)
_TABLES = "all numbers of this table."
_UNIFORM = (
    "An earlier comparison on Pendulum* (experiments/results/sparse_pendulum_td3) left NERS with "
    "99.4 % of the memory in use after 892 updates of its network: it may count as not tested "
    "again, for drawing like uniform replay."
)
_ENDS = "Means of the last five evaluations."
_ALWAYS_UP = (
    "Found at this size: from the second evaluation on all arms score the same, 19.5 to 23.5, as "
    "much as a policy that always goes up (21 to 23): they have come to that, and the curves, "
    "which lie on one another, tell no method from another."
)

ENTRIES = (
    Entry(
        "ners.fig1", "Pendulum: states drawn by TD error, by Q and uniformly", SAMPLED,
        Layout(sampled.draw_states),
        lost="how samples by TD error and by Q were drawn; here by rank, the largest first, with "
        "probability proportional to 1 / rank.",
        note=("Version 1 of the task, which limits the speed before it moves the rod; the paper "
              "has version 0.",),
    ),
    Entry(
        "ners.fig3", "Pendulum*: learning curves of TD3", PENDULUM_TD3, _CURVES,
        (*_COMPARED, "lap"), lost=_SETTINGS,
        note=("LAP, with alpha 0.6 and kappa 0.01, is not in the paper.", _UNIFORM),
    ),
    Entry(
        "ners.fig3.sac", "Pendulum*: learning curves of SAC", CONTINUOUS_SAC, _CURVES, _COMPARED,
        lost=_SETTINGS, note=(_UNIFORM, "LunarLander and BipedalWalker at size paper only."),
    ),
    Entry(
        "ners.fig3.box2d", "LunarLander and BipedalWalker: learning curves of TD3", BOX2D, _CURVES,
        lost=_SETTINGS, comparable=False,
        note=("Version 3 of LunarLander, where the paper has version 2; BipedalWalker at size "
              "paper only.",),
    ),
    Entry(
        "ners.fig4", "Panel a: NERS without most features, and without global context",
        CONTINUOUS_SAC, _CURVES, ("uniform", "ners", *_ABLATED),
        lost="task and agent of this panel; here Pendulum* and SAC.", note=(_UNIFORM,),
    ),
    Entry(
        "ners.fig4.bc", "Panels b and c: NERS beside NERS*, which learns from training",
        CONTINUOUS_SAC, _CURVES, (*_COMPARED, "ners_star"), lost=_SETTINGS,
        note=("Pendulum* in place of BipedalWalker and LunarLander, which size paper has.",
              _UNIFORM),
    ),
    Entry(
        "ners.fig4.td3", "NERS beside NERS* under TD3", PENDULUM_TD3, _CURVES,
        ("uniform", "ners", "ners_star"), note=("Not in the paper, which has SAC.", _UNIFORM),
    ),
    Entry(
        "ners.fig5", "Panels d to f: TD errors of what is replayed, over training",
        CONTINUOUS_SAC, _over_time("abs_td", "mean |TD error| of what is replayed"), _COMPARED,
        note=("Pendulum* in place of BipedalWalker, Ant and Walker2d; claims are about means over "
              "training, where the paper tells early from late.", _UNIFORM),
    ),
    Entry(
        "ners.fig5.q", "Panels a to c: Q of what is replayed, over training",
        CONTINUOUS_SAC, _over_time("q_value", "mean Q of what is replayed"), _COMPARED,
        note=("Pendulum* in place of BipedalWalker, Ant and Walker2d; claims are about means over "
              "training, where the paper speaks of its later part.", _UNIFORM),
    ),
    Entry(
        "ners.figC1", "MuJoCo: learning curves of TD3", MUJOCO, _CURVES,
        lost=_SETTINGS, comparable=False,
        note=("At this size Hopper alone, without ERO, under TD3; all tasks at size paper.",
              "Version 5 of the tasks, where the paper has version 3."),
    ),
    Entry(
        "ners.tab1", "MuJoCo: final returns of TD3", MUJOCO,
        lost=_TABLES, comparable=False, note=("The runs of ners.figC1.", _ENDS),
    ),
    Entry(
        "ners.tab2", "Atari: final scores of Rainbow after 100 000 steps", ATARI,
        lost=_TABLES, comparable=False,
        note=("At this size Freeway alone, 12 000 steps and two seeds.", _ALWAYS_UP, _ENDS,
              "As in the authors' code, NERS learns at evaluations, one per 1 000 steps: 98 times "
              "at size paper, which is too seldom to count as tested; ERO learns at the ends of "
              "episodes, on Freeway one per 2 048 steps."),
    ),
    Entry(
        "ners.figC2", "Atari: learning curves of Rainbow", ATARI, _CURVES, comparable=False,
        note=("The runs of ners.tab2.", _ALWAYS_UP),
    ),
    Entry(
        "ners.tab3", "Pendulum: spread and mean of TD errors and Q of what is replayed",
        PENDULUM_SAC, columns=_REPLAYED, lost=_TABLES,
        note=("Spreads are within batches, and means over training.",
              "ERO learns at the ends of 45 episodes, as it must have in the paper: too seldom to "
              "count as tested.",
              "Version 1 of the task, where the paper has version 0."),
    ),
)  # fmt: skip
