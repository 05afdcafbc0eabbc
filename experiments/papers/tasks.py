"""Experiments that several papers share, and entries that belong to no paper.

The latter have tasks on which learning depends on the choice of the replayed transitions.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from experiments.figures.style import NAMES
from experiments.papers.entry import Arm, Claim, Experiment, Options, Size, named
from experiments.papers.printed import printed
from experiments.studies.options import Question
from jaxreplay.methods import lap, pal

_RANDOM: Options = {"epsilon_start": 1.0, "epsilon_end": 1.0}  # same experience for all methods
_WALKS: Options = {"n_step": 1, "warmup": 1_000, "eval_every": 1_000, "eval_episodes": 1}
_DISCRETE = {"lap": Arm("lap", lap.DISCRETE), "pal": Arm("pal", pal.DISCRETE)}

# With random behaviour and rare rewards, learning depends only on the replayed transitions.
_METHODS = {
    **named("uniform", "per", "rank"), **_DISCRETE, **named("pser", "ere", "ners"),
}  # fmt: skip


def _walk(
    name: str, env: str, arms: Mapping[str, Arm], every: tuple[int, ...] = (1, 4, 16)
) -> Experiment:
    """Return an experiment on a task with rare rewards and random behaviour."""
    small = Size(
        (env,), 16, {**_WALKS, "steps": 40_000, "observe_every": 50}, {"batch_size": 32},
        {"hidden": (32,), **_RANDOM}, every=every, most_seeds=256,
        note="Behaviour is random, and the network has one layer of 32 units.",
    )  # fmt: skip
    return Experiment(
        name, "dqn", arms, small, question=Question(primary="steps_to_threshold"),
        smoke={"arms": ("uniform", "per")},
    )  # fmt: skip


WALK = _walk("walk_dqn", "walk/10", _METHODS)
DEEPSEA = _walk(
    "deepsea_dqn", "gymnax/DeepSea-bsuite", {**_METHODS, "ere": Arm("ere", {"smallest": 500})}
)
SINCE = _walk(
    "walk_dqn_since", "walk/10",
    {
        **named("uniform", "per", "cer"), "cer_per": Arm("cer", {"over": "per"}),
        **named("reshuffled", "faded", "curious", "relo"),
    },
    every=(4, 16),
)  # fmt: skip

# Random actions never reach the goals, so that only hindsight gives rewards.
HINDSIGHT = Experiment(
    "bitflip_dqn",
    "dqn",
    {**named("uniform", "her"), "her_per": Arm("her", {"over": "per"})},
    Size(
        ("goals/BitFlip-15",), 16,
        {"n_step": 1, "steps": 20_000, "warmup": 1_000, "eval_every": 2_000},
        {"batch_size": 128}, {"hidden": (64, 64)}, most_seeds=64,
        note="15 bits, 20 000 agent steps, one update per step.",
    ),
    question=Question(primary="final"),
)  # fmt: skip

# MinAtar, with 10x10 pixels, is the substitute for Atari that is affordable with ten seeds.
_MINATAR: Options = {"steps": 100_000, "n_step": 3, "warmup": 5_000, "eval_every": 5_000}
_MINATAR_SIZES: Options = {"batch_size": 32, "num_envs": 4, "capacity": 100_000}
_MINATAR_AGENT: Options = {"learning_rate": 2.5e-4, "epsilon_updates": 10_000}
GAMES = tuple(f"gymnax/{game}-MinAtar" for game in ("Breakout", "Asterix", "SpaceInvaders"))
_TEN = (
    "Asterix", "BeamRider", "Breakout", "DemonAttack", "Enduro", "MsPacman", "Pong", "Qbert",
    "Seaquest", "SpaceInvaders",
)  # fmt: skip
MINATAR_SMALL = Size(
    GAMES, 10, _MINATAR, _MINATAR_SIZES, _MINATAR_AGENT,
    note="Games of ten by ten pixels, Adam, three-step returns; 100 000 agent steps.",
)  # fmt: skip

MINATAR = Experiment(
    "minatar_dqn",
    "dqn",
    {**named("uniform", "per", "rank"), **_DISCRETE},
    MINATAR_SMALL,
    columns=("stored/abs_td",),
    smoke={"arms": ("uniform", "per")},
)


def _atari(paper: str, preset: str, games: Iterable[str], note: str, *arms: str) -> Experiment:
    """Return an experiment with a paper's published protocol, and one seed per game."""
    envs = tuple(f"atari/{game}" for game in games)
    return Experiment(
        f"atari_dqn_{paper}", "dqn", named(*arms),
        paper=Size(envs, 1, preset=preset, note=note), question=Question(control=False),
    )  # fmt: skip


ATARI_PER = _atari(
    "per", "per_proportional", (game for game, *_ in printed("pser_tab5")[1:]),
    "The 55 games with a human score, one seed each, as published.", "uniform", "per", "rank",
)  # fmt: skip
ATARI_LAP = _atari(
    "lap", "lap_atari", _TEN, "Ten games that papers often choose: our copy does not name them.",
    "uniform", "per", "lap", "pal",
)  # fmt: skip
ONE_GAME = dataclasses.replace(MINATAR_SMALL, envs=GAMES[:1])


_EVERY = (16, 4, 1)  # agent steps per update: 2, 8 and 32 replays per transition


def _sooner(
    task: str, labels: Iterable[str], base: str = "uniform", every: tuple[int, ...] = _EVERY
) -> tuple[Claim, ...]:
    """Return the claims that methods solve a task sooner than `base`, at every `learn_every`."""
    return tuple(
        Claim(
            f"{NAMES.get(label, 'CER over PER')} solves {task} sooner than {NAMES[base]}, at an "
            f"update per {count} step{'s' * (count > 1)}",
            f"{label}_every{count}",
            f"{base}_every{count}",
        )
        for label in labels
        for count in every
    )


def _claims(task: str) -> tuple[Claim, ...]:
    """Return the general claims of the papers about their methods, for one task."""
    return _sooner(task, ("per", "rank", "lap", "pser")) + _sooner(task, ["pser"], "per")


CLAIMS = {
    "all.walk": _claims("the walk"),
    "all.deepsea": _claims("DeepSea"),
    "all.since": _sooner("the walk", list(SINCE.arms)[2:], every=(16, 4)),
}
SOURCES = (WALK, DEEPSEA, SINCE, HINDSIGHT, MINATAR, ATARI_PER, ATARI_LAP)
