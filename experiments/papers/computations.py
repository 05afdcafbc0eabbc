"""All computations, and claims of papers that are made for every setting of a grid."""

import itertools
from collections.abc import Callable, Iterable

import pandas as pd

from experiments.figures.style import NAMES
from experiments.papers import (
    cliffwalk_tables,
    digits,
    earlier_runs,
    lap_tables,
    printed,
    sampled,
)
from experiments.papers.entry import Claim, Computation, Options, Request
from experiments.papers.printed import settings


def _walks(
    name: str, function: Callable[[Request], pd.DataFrame], options: Options, smoke: Options,
    minutes: float, looks: int = 0,
) -> Computation:  # fmt: skip
    """Return a computation of the number of updates on the Blind Cliffwalk."""
    return Computation(
        f"cliffwalk_{name}", function, options, smoke, cliffwalk_tables.SOURCES, "updates", False,
        True, minutes, looks=looks,
    )  # fmt: skip


# Schaul et al. 2016
_METHODS = ("uniform", "oracle", "greedy", "proportional", "rank", "pser")
SIZES = _walks(
    "sizes", cliffwalk_tables.updates_by_size,
    {"states": tuple(range(2, 17)), "seeds": 10, "methods": _METHODS},
    {"states": (2, 3), "seeds": 2, "methods": ("uniform", "proportional")}, 12,
)  # fmt: skip

# Brittain et al. 2019
_SEEDS = {
    "uniform": 10, "oracle": 10, "proportional": 512, "pser": 512,
    "proportional, from epsilon": 192, "pser, from epsilon": 192,
}  # fmt: skip
_DECAYS = ((0.4, 5), (0.65, 10), (0.8, 20))
_ETAS = (0.0, 0.7)
_ALPHAS = (0.5, 1.0)
_STARTS = {"max": "the maximum", "td": "epsilon"}
STARTS = _walks(
    "starts", cliffwalk_tables.errors_by_start,
    {"states": (13, 14, 15, 16), "seeds": _SEEDS, "methods": tuple(_SEEDS)},
    {"states": (3,), "seeds": 2, "methods": ("uniform", "pser")}, 45, looks=10,
)  # fmt: skip
_THEOREM = _walks(
    "theorem", cliffwalk_tables.expected_updates,
    {"states": tuple(range(2, 17)), "seeds": 10, "rhos": (0.4, 0.65, 0.8)},
    {"states": (2, 3), "seeds": 4, "rhos": (0.4,)}, 2,
)  # fmt: skip
SWEEP = _walks(
    "settings", cliffwalk_tables.settings_of_pser,
    {
        "states": (13, 16), "seeds": 10, "starts": tuple(_STARTS), "alphas": _ALPHAS,
        "decays": _DECAYS, "etas": _ETAS,
    },
    {
        "states": (3,), "seeds": 2, "starts": ("max",), "alphas": (0.6,), "decays": ((0.4, 5),),
        "etas": (0.0,),
    },
    60,
)  # fmt: skip
# Only with priorities that start at epsilon: from the maximum, both methods first need one pass
# through the memory.
_LONGER_SWEEP = _walks(
    "settings_smaller", cliffwalk_tables.settings_of_pser,
    {**SWEEP.made_of, "states": (13, 14, 15), "seeds": 50, "starts": ("td",)}, SWEEP.smoke, 40,
)  # fmt: skip

# Oh et al. 2021
_SAMPLED = Computation(
    "ners_sampled", sampled.sampled_states,
    {"steps": 30_000, "seed": 0, "drawn": 64, "shown": 10, "hidden": (256, 256)},
    {"steps": 1_200, "drawn": 16, "hidden": (8, 8)}, sampled.SOURCES, minutes=6,
)  # fmt: skip

COMPUTATIONS = (
    SIZES, STARTS, _THEOREM, SWEEP, _LONGER_SWEEP, _SAMPLED,
    digits.DIGITS, earlier_runs.EARLIER, lap_tables.THEORY, lap_tables.RUN_TIME,
    printed.TABLE, printed.CHANGES, printed.SCORED,
    settings("per", "per_proportional", "per_rank"),
    settings("lap_fig7", "lap_mujoco", parts=("agent",)),
    settings("lap_tab6", "lap_mujoco"),
    settings("lap_tab7", "lap_atari"),
    settings("pser_2", "pser", parts=("replay pser", "agent with pser")),
    settings("pser_3", "pser", parts=("agent dqn", "loop", "sizes", "environment")),
    settings("pser_4", "pser", parts=("replay per", "agent with per")),
    settings("refer", "refer_racer", "refer_ddpg", "refer_naf", "refer_acer", "refer_ppo"),
)  # fmt: skip


def _swept(states: tuple[int, ...], starts: Iterable[str]) -> tuple[Claim, ...]:
    """Return the claim that PSER needs fewer updates than PER, for every setting of the grid."""
    return tuple(
        Claim(
            f"PSER learns in fewer updates than PER from {_STARTS[start]}, n = {n}, alpha "
            f"{alpha}, rho {rho}, W {window}, eta {eta}",
            "pser",
            "per",
            where={"n": n, "start": start, "alpha": alpha, "rho": rho, "eta": eta},
        )
        for n, start, alpha, (rho, window), eta in itertools.product(
            states, starts, _ALPHAS, _DECAYS, _ETAS
        )
    )


def _sooner(
    task: str, labels: Iterable[str], base: str = "uniform", every: tuple[int, ...] = (16, 4, 1)
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


CLAIMS = {  # id of an entry -> its claims
    "pser.sweep": _swept((16,), _STARTS),
    "pser.sweep.seeds": _swept((13, 14, 15), ["td"]),
    "all.walk": _claims("the walk"),
    "all.deepsea": _claims("DeepSea"),
    "all.since": _sooner(
        "the walk", ("cer", "cer_per", "reshuffled", "faded", "curious", "relo"), every=(16, 4)
    ),
}
