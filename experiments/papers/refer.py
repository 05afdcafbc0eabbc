"""Figures and tables of ReF-ER and RACER (Novati and Koumoutsakos 2019)."""

from typing import Any

from experiments.environments import packages
from experiments.papers import layouts
from experiments.papers.entry import Arm, Entry, Experiment, Layout, Options, Size
from experiments.papers.printed import printed, settings
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

_CURVES_LOST = "the curves; our copy has the captions of its figures alone."
_EPISODES = (
    "The figure shows training episodes, as the paper's does; verdicts rest on evaluations, whose "
    "actions have no noise."
)
_UNANNEALED = (
    "In so few gradient steps, C and the learning rates fall by less than 3 %; the paper's fall to "
    "a sixth."
)
_PERCENTILES_NOTE = (
    "Percentiles over seeds, of each seed's mean return between two log points; the paper's are "
    "over the episodes of all seeds."
)
_SAME_GRID = "The same runs as refer.fig5."
_SAME_DDPG = "The same runs as refer.fig2."


def _scale(steps: str) -> str:
    return (
        f"Pendulum, networks of 64 units, a discount of 0.98 and {steps} agent steps in place of "
        "MuJoCo tasks, 128 units, 0.995 and 10 million."
    )


def _returns(aggregate: str = "mean, 20 to 80 %", **options: object) -> Layout:
    return Layout(
        layouts.lines,
        {"y": "train_return", "aggregate": aggregate, "y_label": "return of training episodes",
         **options},
    )  # fmt: skip


_DISTANCES = Layout(
    layouts.lines,
    {"y": "agent/kl", "aggregate": "mean, 20 to 80 %", "log": "y",
     "y_label": "KL(behaviour || policy), nats"},
)  # fmt: skip
_PERCENTILES = _returns("median, 20 to 80 %")

_CONSERVATIVE, _RELAXED = "C2_twice", "C8_half"
_VARIANTS = ("C4", _CONSERVATIVE, _RELAXED)

ENTRIES = (
    Entry(
        "refer.fig2", "DDPG: returns with plain replay, rank-based PER and ReF-ER", DDPG,
        _returns(), ("ddpg", "ddpg_rank", "u_ddpg", "u_ddpg_C8", "u_ddpg_C4", "u_ddpg_C2"),
        lost=_CURVES_LOST, comparable=False,
        note=(
            _scale("32 000"), _EPISODES, _UNANNEALED,
            "Not asked: whether plain replay or PER is better where more exploration is needed, as "
            "the paper says of Swimmer and HumanoidStandup.",
        ),
    ),
    Entry(
        "refer.stable", "DDPG: what ReF-ER costs where plain replay is stable", DDPG,
        arms=("ddpg", "u_ddpg_C4"), comparable=False,
        note=(_SAME_DDPG,
              "What the paper's text says; the claim was added when these runs were there."),
    ),
    Entry(
        "refer.fig3", "DDPG: how far the policy is from the behaviours in the memory",
        DDPG, _DISTANCES,
        ("ddpg_measured", "u_ddpg_measured", "u_ddpg_C8", "u_ddpg_C4", "u_ddpg_C2"),
        reported=printed("refer_fig3"),
        lost=_CURVES_LOST, comparable=False,
        note=(
            _SAME_DDPG, _scale("32 000"), _UNANNEALED,
            "Plain replay has Gaussian noise here, as ReF-ER has: of the Ornstein-Uhlenbeck noise "
            "in refer.fig2, the KL divergence can't be measured.",
            "It is the mean over the batches that are learned from; bounded DDPG's is at most 50.",
        ),
    ),
    Entry(
        "refer.fig9", "DDPG: 20th and 80th percentiles of returns", DDPG, _PERCENTILES,
        ("ddpg", "ddpg_rank", "u_ddpg_C4"), lost=_CURVES_LOST, comparable=False,
        note=(_SAME_DDPG, _scale("32 000"), _PERCENTILES_NOTE),
    ),
    Entry(
        "refer.fig4", "NAF: returns with plain replay, rank-based PER and ReF-ER", NAF, _returns(),
        lost=_CURVES_LOST, comparable=False, note=(_scale("40 000"), _EPISODES, _UNANNEALED),
    ),
    Entry(
        "refer.fig5", "RACER with C and N varied, beside PPO and ACER", GRID,
        _returns(
            groups={
                f"C = {clip}": (*(f"C{clip}{name}" for name in _TIMES), *_OTHERS)
                for clip in _CLIPS
            }
        ),
        lost=_CURVES_LOST, comparable=False,
        note=(
            _scale("25 000"), _EPISODES, _UNANNEALED,
            "C4_half and C4_twice have half and twice the memory of C4, of 8 192 steps (at the "
            "paper's size: 2^19).",
            "The paper says of C that most tasks are so, those that want precise control above "
            "all, and of N that it may be so.",
            "A first test had ten seeds; later ones were added in batches, and ended at 32.",
        ),
    ),
    Entry(
        "refer.fig5.longer", "RACER beside PPO, with 16 times the agent steps", LONGER,
        _returns(), comparable=False,
        note=(_scale("400 000"), _EPISODES,
              "The claim of refer.fig5 about PPO, which makes 195 updates here and 12 there. It is "
              "about mean returns: RACER learns sooner, but does not end higher.",
              "Not asked: whether PPO is better than ACER, whose ten seeds would take two hours.",
              "RACER stores 16 384 steps, a 24th of training; in the paper it is a 20th."),
    ),
    Entry(
        "refer.plain", "RACER with ReF-ER and with plain replay", PLAIN, _returns(),
        comparable=False,
        note=("Not a figure of the paper: what its text says of RACER.", _scale("25 000"),
              _EPISODES, _UNANNEALED,
              "Plain replay is uniform over finished episodes, and measures the KL divergence."),
    ),
    Entry(
        "refer.fig7", "ACER and RACER: how far the policy is from its behaviours", GRID,
        _DISTANCES, ("acer", *_VARIANTS),
        lost="the curves; the second and third claim are ours, from what its caption calls these "
        "settings. N of 10^18 to 10^20, as printed there, must be 2^18 to 2^20.",
        comparable=False, note=(_SAME_GRID, _scale("25 000"), _UNANNEALED),
    ),
    Entry(
        "refer.fig8", "PPO and RACER: 20th and 80th percentiles of returns", GRID,
        _PERCENTILES, ("ppo", *_VARIANTS), lost=_CURVES_LOST, comparable=False,
        note=(_SAME_GRID, _scale("25 000"), _PERCENTILES_NOTE),
    ),
    Entry(
        "refer.fig6", "RACER: form of the advantage, D, batch size, F and learning rate", ABLATIONS,
        _returns(
            groups={
                "advantage (dg)": ("baseline", *_FORMS),
                "tolerance D (0.1)": ("baseline", *_TOLERANCES),
                "batch B (256)": ("baseline", *_BATCHES),
                "steps F (1)": ("baseline", *_RATIOS),
                "learning rate": ("baseline", *_RATES),
            }
        ),
        lost="the curves, and the values that were tried; those here are ours.", comparable=False,
        note=(
            _scale("25 000"), _EPISODES, _UNANNEALED,
            "The baseline's learning rate is 1e-3 here and 1e-4 in the paper.",
        ),
    ),
    *(
        Entry(
            f"refer.{name}", shows, source, _PERCENTILES,
            lost="the curves, and which tasks they are of.", comparable=False,
            note=("It needs the extra playground, which make does not install.",
                  "One task and 40 000 agent steps in place of the suite and 10 million.",
                  "Actions are clipped to [-1, 1], where the paper maps them there by a tanh.",
                  _PERCENTILES_NOTE),
        )
        for name, shows, source in (
            ("fig10", "DeepMind Control: 20th and 80th percentiles of RACER's returns",
             CONTROL_RACER),
            ("fig11", "DeepMind Control: 20th and 80th percentiles of u-DDPG's returns with ReF-ER",
             CONTROL_DDPG),
        )
    ),
    Entry(
        "refer.tab1", "Settings of RACER",
        settings("refer", "refer_racer", "refer_ddpg", "refer_naf", "refer_acer",
                       "refer_ppo"),
        reported=printed("refer_tab1"),
        note=("Those of DDPG, NAF, ACER and PPO, which its appendix has in words, stand beside "
              "them.",),
    ),
)  # fmt: skip
