"""Figures and tables of LAP and PAL (Fujimoto, Meger and Precup 2020)."""

from typing import Any

from experiments.papers import gains, layouts, settings, theory
from experiments.papers.entry import Claim, Computation, Entry, Exact, Layout
from experiments.papers.experiment import Arm, Experiment, Options, Size
from experiments.papers.run_time import RUN_TIME
from experiments.papers.tasks import ATARI_LAP, MINATAR
from experiments.studies.options import Question

THEORY = Computation(
    "lap_theory", theory.lap_and_pal,
    {"smoke": {"seeds": 1, "stored": 500}, "small": {"seeds": 10, "stored": 20_000}},
    theory.SOURCES, minutes=0.5,
)  # fmt: skip

_TD3 = "gymnasium/{}-v5"
_TASKS = tuple(
    _TD3.format(task) for task in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")
)
_L1 = {
    "loss": "l1", "alpha": 0.4, "beta": 0.0, "beta_end": 0.0, "epsilon": 1e-10,
}  # fmt: skip
_ARMS = {
    "uniform": Arm("uniform"),
    "per": Arm("per"),
    "lap": Arm("lap"),
    "pal": Arm("pal"),
}
_ABLATED = {
    "huber": Arm("uniform", {"loss": "huber"}),
    "huber_divided": Arm("pal", {"loss": "huber"}),
    "pal_undivided": Arm("pal", {"divide": False}),
    "ere": Arm("ere"),
    "l1_alpha": Arm("per", _L1),
}
_LOOP: Options = {
    "steps": 60_000, "warmup": 5_000, "eval_every": 5_000, "eval_episodes": 5,
}  # fmt: skip
_SIZES: Options = {"batch_size": 128, "capacity": 100_000}
_QUICK: Options = {"steps": 400, "warmup": 150, "eval_every": 200, "eval_episodes": 1}
_QUICK_SIZES: Options = {"batch_size": 16, "capacity": 500}
_SMOKE = Size(
    ("gymnax/Pendulum-v1",), 2, _QUICK, _QUICK_SIZES, {"hidden": (8, 8)}, arms=("uniform", "lap"),
    note="On a pendulum, where it compiles.",
)  # fmt: skip
_SMALL = Size(
    _TASKS[:1], 10, _LOOP, _SIZES, {"hidden": (128, 128)},
    note="60 000 agent steps in place of 3 million, networks of 128 units, batches of 128.",
)  # fmt: skip
_QUESTION = Question(primary="last_5", baseline="uniform")

MUJOCO = Experiment(
    "mujoco_td3",
    "td3",
    {**_ARMS, "sac": Arm("uniform", agent="sac")},
    sizes={
        "smoke": _SMOKE,
        "small": Size(
            _TASKS[:2], 10, _LOOP, _SIZES, {"hidden": (128, 128)}, arms=("uniform", "per", "lap"),
            note=_SMALL.note,
        ),
        "paper": Size(_TASKS, 10, preset="lap_mujoco"),
    },
    question=_QUESTION,
)  # fmt: skip
ABLATIONS = Experiment(
    "mujoco_td3_ablations",
    "td3",
    {**_ARMS, **_ABLATED},
    sizes={
        "smoke": Size(
            _SMOKE.envs, 2, _QUICK, _QUICK_SIZES, {"hidden": (8, 8)},
            arms=("uniform", "huber_divided"), note=_SMOKE.note,
        ),
        "small": _SMALL,
        "paper": Size(_TASKS, 10, preset="lap_mujoco"),
    },
    question=_QUESTION,
)  # fmt: skip

_SCORES = (
    ("task", "TD3", "SAC", "TD3 + PER", "TD3 + LAP", "TD3 + PAL"),
    ("HalfCheetah", "13570.9 ± 794.2", "15511.6 ± 305.2", "13927.8 ± 683.9", "14836.5 ± 532.2",
     "15012.2 ± 885.4"),
    ("Hopper", "3393.2 ± 381.9", "2851.6 ± 417.4", "3275.5 ± 451.8", "3246.9 ± 463.4",
     "3129.1 ± 473.5"),
    ("Walker2d", "4692.4 ± 423.6", "5234.4 ± 346.1", "4719.1 ± 492.0", "5230.5 ± 368.2",
     "5218.7 ± 422.6"),
    ("Ant", "6469.9 ± 200.3", "4923.6 ± 882.3", "6278.7 ± 311.3", "6912.6 ± 234.4",
     "6476.2 ± 640.2"),
    ("Humanoid", "6437.5 ± 349.3", "6580.9 ± 296.6", "5629.3 ± 174.4", "7855.6 ± 705.9",
     "8265.9 ± 519.0"),
)  # fmt: skip
_LOSSES = (
    ("task", "TD3 + Huber", "TD3 + Huber + 1/lambda", "TD3 + PAL - 1/lambda", "TD3 + ERE",
     "TD3 + L1 + alpha"),
    ("HalfCheetah", "14820.5 ± 785.5", "13772.2 ± 685.7", "14404 ± 642.2", "14863.6 ± 602.0",
     "14885.4 ± 402.6"),
    ("Hopper", "2125.7 ± 596.9", "3442.2 ± 319.4", "3135.8 ± 479.5", "3541.7 ± 253.3",
     "3208.9 ± 475.1"),
    ("Walker2d", "4311.3 ± 1219.2", "4707.3 ± 435.3", "5313.7 ± 368.2", "5205.5 ± 407.0",
     "5153.7 ± 601.4"),
    ("Ant", "4952.6 ± 1204.2", "6499.2 ± 162.7", "6322.7 ± 564.3", "6285.9 ± 271.7",
     "6021.1 ± 656.9"),
    ("Humanoid", "5039.1 ± 1631.5", "6163.2 ± 331.7", "7493.4 ± 645.3", "6889.9 ± 627.4",
     "6185.3 ± 207.0"),
)  # fmt: skip
_GAINS = (
    ("", "mean gain", "median gain"),
    ("DDQN over DDQN + PER", "-8.06 %", "-13.00 %"),
    ("DDQN + LAP over DDQN + PER", "53.38 %", "24.98 %"),
    ("DDQN + PAL over DDQN + PER", "4.50 %", "-8.96 %"),
    ("DDQN + PER over DDQN", "37.65 %", "15.24 %"),
    ("DDQN + LAP over DDQN", "148.16 %", "24.35 %"),
    ("DDQN + PAL over DDQN", "20.46 %", "6.79 %"),
)
_PAIRS = {
    "DDQN over DDQN + PER": ("uniform", "per"),
    "DDQN + LAP over DDQN + PER": ("lap", "per"),
    "DDQN + PAL over DDQN + PER": ("pal", "per"),
    "DDQN + PER over DDQN": ("per", "uniform"),
    "DDQN + LAP over DDQN": ("lap", "uniform"),
    "DDQN + PAL over DDQN": ("pal", "uniform"),
}
_RUN_TIMES = (
    ("", "minutes for a million steps", "increase"),
    ("TD3", "81.62 ± 1.14", "-"),
    ("TD3 + PER, theirs", "92.78 ± 0.93", "13.68 %"),
    ("TD3 + PER, Dopamine's", "143.02 ± 1.75", "75.24 %"),
    ("TD3 + PER, Baselines'", "268.80 ± 7.39", "229.35 %"),
    ("SAC", "139.70 ± 2.22", "71.17 %"),
)

_CURVES = Layout(layouts.lines, {"aggregate": "mean, 95 % interval", "smooth": 0.01})
_BOTH = (
    Claim("TD3 + LAP ends at least as high as TD3 + PER", "lap", "per", "at least as good"),
    Claim("TD3 + LAP matches or outperforms TD3", "lap", "uniform", "at least as good"),
    Claim("TD3 + PER is of no benefit: TD3 is at least as good", "uniform", "per",
          "at least as good"),
)  # fmt: skip
_GAMES = (
    Claim("DDQN + LAP ends higher than DDQN + PER", "lap", "per", primary="last_5"),
    Claim("DDQN + LAP ends higher than DDQN", "lap", "uniform", primary="last_5"),
    Claim("DDQN + PAL ends higher than DDQN", "pal", "uniform", primary="last_5"),
    Claim("DDQN + PER ends higher than DDQN", "per", "uniform", primary="last_5"),
    Claim("DDQN + PAL ends lower than DDQN + PER", "pal", "per", "worse", primary="last_5"),
)
_ATARI: dict[str, Any] = {"comparable": False, "published": ATARI_LAP}
_DISCRETE = ("uniform", "per", "lap", "pal")
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
        MUJOCO, _CURVES, claims=_BOTH, comparable=False,
        note=(_GYM, "PAL and SAC run at size paper alone; PAL is an arm of lap.fig4 and lap.fig5."),
    ),
    Entry(
        "lap.tab1", "MuJoCo: the last evaluations", MUJOCO,
        reported=_SCORES, comparable=False, note=("The runs of lap.fig1.", _GYM),
    ),
    Entry(
        "lap.fig4", "MuJoCo, ablations: Huber, Huber over lambda, PAL without lambda",
        ABLATIONS, _CURVES, ("uniform", "huber", "huber_divided", "pal_undivided", "pal"),
        claims=(
            Claim("PAL ends higher than the Huber loss", "pal", "huber"),
            Claim("PAL in full ends at least as high as without the division by lambda", "pal",
                  "pal_undivided", "at least as good"),
        ),
        comparable=False, note=(_GYM,),
    ),
    Entry(
        "lap.tab4", "MuJoCo, ablations: the last evaluations", ABLATIONS,
        arms=("uniform", "huber", "huber_divided", "pal_undivided", "pal"), reported=_LOSSES,
        comparable=False, note=("The runs of lap.fig4.", _GYM),
    ),
    Entry(
        "lap.fig5", "MuJoCo, more baselines: ERE, and L1 with alpha", ABLATIONS, _CURVES,
        ("uniform", "ere", "l1_alpha", "lap", "pal"),
        claims=(
            Claim("LAP ends at least as high as ERE", "lap", "ere", "at least as good"),
            Claim("LAP ends at least as high as L1 with alpha", "lap", "l1_alpha",
                  "at least as good"),
        ),
        comparable=False, note=(_GYM, "The paper gives no settings of ERE."),
    ),
    Entry(
        "lap.tab5", "MuJoCo, more baselines: the last evaluations", ABLATIONS,
        arms=("uniform", "ere", "l1_alpha", "lap", "pal"), reported=_LOSSES, comparable=False,
        note=("The runs of lap.fig5.", _GYM),
    ),
    Entry(
        "lap.fig2", "Atari: gain in the final score over DDQN, game by game", MINATAR,
        Layout(layouts.scores, {"baseline": "uniform"}), _DISCRETE, claims=_GAMES,
        reported=_GAINS, lost="the names of the games.", **_ATARI, note=(_SMALLER,),
    ),
    Entry(
        "lap.fig6", "Atari: learning curves", MINATAR,
        Layout(layouts.lines, {"aggregate": "mean, 95 % interval", "smooth": 0.01}), _DISCRETE,
        **_ATARI, note=("The runs of lap.fig2.", _SMALLER),
    ),
    Entry(
        "lap.tab2", "Atari: mean and median gain", MINATAR, arms=_DISCRETE,
        reported=_GAINS, ours=lambda data: gains.mean_and_median(data, _PAIRS), **_ATARI,
        note=("The runs of lap.fig2.", _SMALLER),
    ),
    Entry(
        "lap.fig3", "Extra run time of PER", RUN_TIME,
        Layout(layouts.bars, {"y_label": "run time over uniform replay's", "panel": "task",
                              "repeats": "turns"}),
        claims=(
            Claim("proportional PER makes TD3 slower", "per", "uniform", "worse",
                  where={"task": "td3"}),
        ),
        reported=_RUN_TIMES, comparable=False, note=(_COMPILED,),
    ),
    Entry(
        "lap.tab3", "Run times", RUN_TIME, reported=_RUN_TIMES, comparable=False,
        note=(_COMPILED,),
    ),
    *(
        Entry(f"lap.{name}", shows, settings.table(f"lap_{name}", preset, parts=parts))
        for name, shows, preset, parts in (
            ("fig7", "Networks of the MuJoCo experiments", "lap_mujoco", ("agent",)),
            ("tab6", "Settings for MuJoCo", "lap_mujoco", ()),
            ("tab7", "Settings for Atari", "lap_atari", ()),
        )
    ),
)  # fmt: skip
