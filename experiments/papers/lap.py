"""Figures and tables of LAP and PAL (Fujimoto, Meger and Precup 2020)."""

from dataclasses import replace
from typing import Any

from experiments.papers import gains, layouts
from experiments.papers.entry import (
    Arm,
    Entry,
    Exact,
    Experiment,
    Layout,
    Size,
    named,
)
from experiments.papers.lap_tables import RUN_TIME, THEORY
from experiments.papers.printed import printed, settings
from experiments.papers.tasks import ATARI_LAP, MINATAR
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
_LOSSES = ("uniform", "huber", "huber_divided", "pal_undivided", "pal")
_OTHERS = ("uniform", "ere", "l1_alpha", "lap", "pal")
ABLATIONS = Experiment(
    "mujoco_td3_ablations", "td3", {**_ARMS, **_ABLATED}, _SMALL, _PAPER, _QUESTION
)

_NAMED = {"uniform": "", "per": " + PER", "lap": " + LAP", "pal": " + PAL"}
# Name of a gain in the paper -> arm and baseline.
_PAIRS = {
    f"DDQN{_NAMED[arm]} over DDQN{_NAMED[base]}": (arm, base)
    for base, arms in (("per", ("uniform", "lap", "pal")), ("uniform", ("per", "lap", "pal")))
    for arm in arms
}

_CURVES = Layout(layouts.lines, {"aggregate": "mean, 95 % interval", "smooth": 0.01})
_ATARI: dict[str, Any] = {"comparable": False, "published": ATARI_LAP}
_COMPILED = "TD3 on a pendulum, compiled: loops share a program with their environment."
_GYM = "Version 5 of the tasks, where the paper has version 3."
_SMALLER = "Three games of ten by ten pixels in place of ten Atari games, Adam in place of RMSProp."
_OBSERVED = (
    ("thm1", "Theorem 1: any loss under any sampling scheme has a uniform loss of equal gradient"),
    ("thm2", "Theorem 2: of all such pairs, L1 with its scheme has the least variance"),
    ("thm3", "Theorem 3: PER minimises another power of the TD error than its loss says"),
    ("obs1", "Observation 1: LAP's gradient varies less than its uniform equivalent's"),
    ("obs2", "Observation 2: the squared error is least at the mean of the targets"),
    ("obs3", "Observation 3: the absolute error is least at their median"),
    ("obs4", "Observation 4: LAP and PAL have one expected gradient"),
)

ENTRIES = (
    *(
        Entry(f"lap.{name}", shows, THEORY,
              claims=(Exact(shows.partition(": ")[2], name),))
        for name, shows in _OBSERVED
    ),
    Entry(
        "lap.fig1", "MuJoCo: learning curves of TD3 with uniform replay, PER, LAP, PAL",
        MUJOCO, _CURVES, comparable=False,
        note=(_GYM, "PAL and SAC run at size paper alone; PAL is an arm of lap.fig4 and lap.fig5."),
    ),
    Entry(
        "lap.tab1", "MuJoCo: the last evaluations", MUJOCO,
        reported=printed("lap_tab1"), comparable=False, note=("The runs of lap.fig1.", _GYM),
    ),
    Entry(
        "lap.fig4", "MuJoCo, ablations: Huber, Huber over lambda, PAL without lambda",
        ABLATIONS, _CURVES, _LOSSES, comparable=False, note=(_GYM,),
    ),
    Entry(
        "lap.tab4", "MuJoCo, ablations: the last evaluations", ABLATIONS,
        arms=_LOSSES, reported=printed("lap_tab4"), comparable=False,
        note=("The runs of lap.fig4.", _GYM),
    ),
    Entry(
        "lap.fig5", "MuJoCo, more baselines: ERE, and L1 with alpha", ABLATIONS, _CURVES, _OTHERS,
        comparable=False, note=(_GYM, "The paper gives no settings of ERE."),
    ),
    Entry(
        "lap.tab5", "MuJoCo, more baselines: the last evaluations", ABLATIONS,
        arms=_OTHERS, reported=printed("lap_tab4"), comparable=False,
        note=("The runs of lap.fig5.", _GYM),
    ),
    Entry(
        "lap.fig2", "Atari: gain in the final score over DDQN, game by game", MINATAR,
        Layout(layouts.scores, {"baseline": "uniform"}), tuple(_ARMS),
        reported=printed("lap_tab2"), lost="the names of the games.", **_ATARI, note=(_SMALLER,),
    ),
    Entry(
        "lap.fig6", "Atari: learning curves", MINATAR,
        _CURVES, tuple(_ARMS), **_ATARI, note=("The runs of lap.fig2.", _SMALLER),
    ),
    Entry(
        "lap.tab2", "Atari: mean and median gain", MINATAR, arms=tuple(_ARMS),
        reported=printed("lap_tab2"), ours=lambda data: gains.mean_and_median(data, _PAIRS),
        **_ATARI, note=("The runs of lap.fig2.", _SMALLER),
    ),
    Entry(
        "lap.fig3", "Extra run time of PER", RUN_TIME,
        Layout(layouts.bars, {"y_label": "run time over uniform replay's", "panel": "task",
                              "repeats": "turns"}),
        reported=printed("lap_tab3"), comparable=False, note=(_COMPILED,),
    ),
    Entry(
        "lap.tab3", "Run times", RUN_TIME, reported=printed("lap_tab3"), comparable=False,
        note=(_COMPILED,),
    ),
    *(
        Entry(f"lap.{name}", shows, settings(f"lap_{name}", preset, parts=parts))
        for name, shows, preset, parts in (
            ("fig7", "Networks of the MuJoCo experiments", "lap_mujoco", ("agent",)),
            ("tab6", "Settings for MuJoCo", "lap_mujoco", ()),
            ("tab7", "Settings for Atari", "lap_atari", ()),
        )
    ),
)  # fmt: skip
