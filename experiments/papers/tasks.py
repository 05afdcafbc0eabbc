"""Experiments that several papers share, and entries that are no paper's.

The latter are tasks on which what is replayed decides what is learned.
"""

import dataclasses
from collections.abc import Mapping

from experiments.figures.style import NAMES
from experiments.papers import layouts
from experiments.papers.atari_scores import SCORES
from experiments.papers.entry import Claim, Entry, Layout
from experiments.papers.experiment import Arm, Experiment, Options, Size
from experiments.studies.options import Question
from jaxreplay.methods import lap, pal

_RANDOM: Options = {"epsilon_start": 1.0, "epsilon_end": 1.0}  # what is seen is the same for all
_WALKS: Options = {"n_step": 1, "warmup": 1_000, "eval_every": 1_000, "eval_episodes": 1}
_DISCRETE = {"lap": Arm("lap", lap.DISCRETE), "pal": Arm("pal", pal.DISCRETE)}

# Random behaviour, and a reward that few transitions have: what is learned is what is replayed.
_METHODS = {
    "uniform": Arm("uniform"),
    "per": Arm("per"),
    "rank": Arm("rank"),
    **_DISCRETE,
    "pser": Arm("pser"),
    "ere": Arm("ere"),
    "ners": Arm("ners"),
}


def _walk(
    name: str, env: str, arms: Mapping[str, Arm], every: tuple[int, ...] = (1, 4, 16)
) -> Experiment:
    """Return an experiment on a task with rare rewards and random behaviour."""
    sizes = {"batch_size": 32}
    return Experiment(
        name,
        "dqn",
        arms,
        sizes={
            "smoke": Size(
                (env,), 2, {**_WALKS, "steps": 2_000, "eval_every": 500}, sizes,
                {"hidden": (8,), **_RANDOM}, arms=("uniform", "per"), every=(16,),
            ),
            "small": Size(
                (env,), 16, {**_WALKS, "steps": 40_000, "observe_every": 50}, sizes,
                {"hidden": (32,), **_RANDOM}, every=every,
                note="Behaviour is random, and the network has one layer of 32 units.",
                most_seeds=256,
            ),
        },
        question=Question(primary="steps_to_threshold"),
    )  # fmt: skip


WALK = _walk("walk_dqn", "walk/10", _METHODS)
DEEPSEA = _walk(
    "deepsea_dqn", "gymnax/DeepSea-bsuite", {**_METHODS, "ere": Arm("ere", {"smallest": 500})}
)
SINCE = _walk(
    "walk_dqn_since", "walk/10",
    {
        "uniform": Arm("uniform"), "per": Arm("per"), "cer": Arm("cer"),
        "cer_per": Arm("cer", {"over": "per"}), "reshuffled": Arm("reshuffled"),
        "faded": Arm("faded"), "curious": Arm("curious"), "relo": Arm("relo"),
    },
    every=(4, 16),
)  # fmt: skip

# Goals that are never reached by chance: without hindsight there is no reward.
HINDSIGHT = Experiment(
    "bitflip_dqn",
    "dqn",
    {"uniform": Arm("uniform"), "her": Arm("her"), "her_per": Arm("her", {"over": "per"})},
    sizes={
        "smoke": Size(
            ("goals/BitFlip-4",), 2,
            {"n_step": 1, "steps": 400, "warmup": 200, "eval_every": 100},
            agent={"hidden": (8,)}, arms=("uniform", "her"),
        ),
        "small": Size(
            ("goals/BitFlip-15",), 16,
            {"n_step": 1, "steps": 20_000, "warmup": 1_000, "eval_every": 2_000},
            {"batch_size": 128}, {"hidden": (64, 64)}, most_seeds=64,
            note="15 bits, 20 000 agent steps, one update per step.",
        ),
    },
    question=Question(primary="final"),
)  # fmt: skip

# Ten by ten pixels: the nearest to Atari that ten seeds can be had of.
_MINATAR: Options = {
    "steps": 100_000, "n_step": 3, "warmup": 5_000, "eval_every": 5_000,
}  # fmt: skip
_MINATAR_SIZES: Options = {"batch_size": 32, "num_envs": 4, "capacity": 100_000}
_MINATAR_AGENT: Options = {"learning_rate": 2.5e-4, "epsilon_updates": 10_000}
GAMES = tuple(f"gymnax/{game}-MinAtar" for game in ("Breakout", "Asterix", "SpaceInvaders"))
_TEN = (
    "Asterix", "BeamRider", "Breakout", "DemonAttack", "Enduro", "MsPacman", "Pong", "Qbert",
    "Seaquest", "SpaceInvaders",
)  # fmt: skip
MINATAR_SMOKE = Size(
    GAMES[:1], 2,
    {**_MINATAR, "steps": 1_000, "warmup": 400, "eval_every": 200, "eval_episodes": 1},
    {**_MINATAR_SIZES, "capacity": 1_000}, {**_MINATAR_AGENT, "hidden": (16,)},
    arms=("uniform", "per"),
)  # fmt: skip
MINATAR_SMALL = Size(
    GAMES, 10, _MINATAR, _MINATAR_SIZES, _MINATAR_AGENT,
    note="Games of ten by ten pixels, Adam, three-step returns; 100 000 agent steps.",
)  # fmt: skip

MINATAR = Experiment(
    "minatar_dqn",
    "dqn",
    {"uniform": Arm("uniform"), "per": Arm("per"), "rank": Arm("rank"), **_DISCRETE},
    sizes={"smoke": MINATAR_SMOKE, "small": MINATAR_SMALL},
    columns=("stored/abs_td",),
)

# As published, all on the same emulator: one experiment for the protocol of each paper.
_DDQN = {"uniform": Arm("uniform"), "per": Arm("per"), "rank": Arm("rank")}
ATARI_PER = Experiment(
    "atari_dqn_per",
    "dqn",
    _DDQN,
    sizes={
        "paper": Size(
            tuple(f"atari/{game}" for game in SCORES), 1, preset="per_proportional",
            note="The 55 games with a human score, one seed each, as published.",
        )
    },
    question=Question(control=False),
)  # fmt: skip
ATARI_LAP = Experiment(
    "atari_dqn_lap",
    "dqn",
    {"uniform": Arm("uniform"), "per": Arm("per"), "lap": Arm("lap"), "pal": Arm("pal")},
    sizes={
        "paper": Size(
            tuple(f"atari/{game}" for game in _TEN), 1, preset="lap_atari",
            note="Ten games that papers often choose: our copy does not name them.",
        )
    },
    question=Question(control=False),
)  # fmt: skip


def one_game(size: Size, arms: tuple[str, ...] = ()) -> Size:
    """Return a size with its first task alone."""
    return dataclasses.replace(size, envs=size.envs[:1], arms=arms)


_EVERY = (16, 4, 1)  # agent steps per update: 2, 8 and 32 replays per transition
_COMPARED = ("per", "rank", "lap", "pser")


def _claims(what: str) -> tuple[Claim, ...]:
    """Claim what the papers claim of their methods in general: better than uniform replay."""
    better = tuple(
        Claim(
            f"{NAMES[method]} solves {what} sooner than uniform replay, at an update per {every} "
            f"step{'s' * (every > 1)}",
            f"{method}_every{every}",
            f"uniform_every{every}",
        )
        for method in _COMPARED
        for every in _EVERY
    )
    same = tuple(
        Claim(
            f"PSER solves {what} sooner than PER, at an update per {every} step{'s' * (every > 1)}",
            f"pser_every{every}",
            f"per_every{every}",
        )
        for every in _EVERY
    )
    return better + same


_METHODS_SINCE = tuple(
    Claim(
        f"{name} solves the walk sooner than uniform replay, at an update per {every} steps",
        f"{label}_every{every}",
        f"uniform_every{every}",
    )
    for label, name in (
        ("cer", "CER"), ("cer_per", "CER over PER"), ("reshuffled", "RR-C"), ("faded", "faded LAP"),
        ("curious", "curious replay"), ("relo", "ReLo"),
    )
    for every in (16, 4)
)  # fmt: skip

ENTRIES = (
    Entry(
        "all.walk",
        "The Blind Cliffwalk as an online task of ten states, behaviour random: steps until solved",
        WALK, Layout(layouts.forest), claims=_claims("the walk"),
        note=("One-hot states, DQN of 32 units; what is seen is the same for every method.",),
    ),
    Entry(
        "all.deepsea",
        "DeepSea of 8 by 8, behaviour random: steps until solved",
        DEEPSEA, Layout(layouts.forest), claims=_claims("DeepSea"),
        note=("ERE's window is 500 steps at least.",),
    ),
    Entry(
        "all.since",
        "The same walk with methods since PER, behaviour random: steps until solved",
        SINCE, Layout(layouts.forest), claims=_METHODS_SINCE,
    ),
    Entry(
        "all.bitflip",
        "BitFlip with 15 bits, whose goals are not reached by chance: final returns",
        HINDSIGHT, Layout(layouts.forest), claims=(
            Claim("HER ends higher than uniform replay", "her", "uniform"),
            Claim("HER over PER ends higher than uniform replay", "her_per", "uniform"),
            Claim(
                "HER over PER ends at least as high as HER", "her_per", "her", "at least as good"
            ),
        ),
        note=(
            "DQN with two layers of 64 units; HER with k = 4 and strategy future.",
            "HER reaches the optimum with and without PER, so that their final returns tie.",
        ),
    ),
)  # fmt: skip
