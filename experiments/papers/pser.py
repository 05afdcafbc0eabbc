"""Figures and tables of prioritized sequence experience replay (Brittain et al. 2019)."""

import itertools
from collections.abc import Callable

import pandas as pd

from experiments.papers import cliffwalk_tables, printed, tasks
from experiments.papers.entry import (
    Arm,
    Claim,
    Computation,
    Experiment,
    Options,
    Request,
    Size,
)

_STARTS = {  # method -> seeds
    "uniform": 10, "oracle": 10, "proportional": 512, "pser": 512,
    "proportional, from epsilon": 192, "pser, from epsilon": 192,
}  # fmt: skip
_MOST = 16  # largest number of states

_DECAYS = ((0.4, 5), (0.65, 10), (0.8, 20))
_ETAS = (0.0, 0.7)
_ALPHAS = (0.5, 1.0)
_BEGINNINGS = {"max": "the maximum", "td": "epsilon"}


def _walks(
    name: str, function: Callable[[Request], pd.DataFrame], options: Options, smoke: Options,
    minutes: float, looks: int = 0,
) -> Computation:  # fmt: skip
    """Return a computation of the number of updates on the Blind Cliffwalk."""
    return Computation(
        f"cliffwalk_{name}", function, options, smoke, cliffwalk_tables.SOURCES, "updates", False,
        True, minutes, looks=looks,
    )  # fmt: skip


CLIFFWALK = _walks(
    "starts", cliffwalk_tables.errors_by_start,
    {"states": (13, 14, 15, 16), "seeds": _STARTS, "methods": tuple(_STARTS)},
    {"states": (3,), "seeds": 2, "methods": ("uniform", "pser")}, 45, looks=10,
)  # fmt: skip
THEOREM = _walks(
    "theorem", cliffwalk_tables.expected_updates,
    {"states": tuple(range(2, 17)), "seeds": 10, "rhos": (0.4, 0.65, 0.8)},
    {"states": (2, 3), "seeds": 4, "rhos": (0.4,)}, 2,
)  # fmt: skip
SWEEP = _walks(
    "settings", cliffwalk_tables.settings_of_pser,
    {
        "states": (13, 16), "seeds": 10, "starts": tuple(_BEGINNINGS), "alphas": _ALPHAS,
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
LONGER_SWEEP = _walks(
    "settings_smaller", cliffwalk_tables.settings_of_pser,
    {**SWEEP.made_of, "states": (13, 14, 15), "seeds": 50, "starts": ("td",)}, SWEEP.smoke, 40,
)  # fmt: skip

# Fig. 6: initial priorities, and rules to combine a decayed priority with the present one.
_SIX = ("BeamRider", "Breakout", "Pong", "Qbert", "Seaquest", "SpaceInvaders")
_PSER = {"eta": 0.7, "rho": 0.4, "window": 5}
_PER = {"alpha": 0.5, "beta": 0.5, "beta_end": 0.5}
VARIANTS = Experiment(
    "minatar_dqn_pser",
    "dqn",
    {
        "per_max": Arm("per", {**_PER, "initial": "max"}),
        "per_td": Arm("per", {**_PER, "initial": "td"}),
        **{
            f"pser_{start}_{how}": Arm("pser", {**_PSER, "initial": start, "combine": how})
            for start in ("max", "td")
            for how in ("max", "add")
        },
    },
    tasks.ONE_GAME,
    Size(
        tuple(f"atari/{game}" for game in _SIX), 1, preset="pser",
        note="The six games of the authors' configurations, one seed each.",
    ),
)  # fmt: skip


def _swept(states: tuple[int, ...], starts: tuple[str, ...]) -> tuple[Claim, ...]:
    """Return the paper's claim about PSER for every setting."""
    return tuple(
        Claim(
            f"PSER learns in fewer updates than PER from {_BEGINNINGS[start]}, n = {n}, alpha "
            f"{alpha}, rho {rho}, W {window}, eta {eta}",
            "pser",
            "per",
            where={"n": n, "start": start, "alpha": alpha, "rho": rho, "eta": eta},
        )
        for n, start, alpha, (rho, window), eta in itertools.product(
            states, starts, _ALPHAS, _DECAYS, _ETAS
        )
    )


CLAIMS = {
    "pser.sweep": _swept((_MOST,), tuple(_BEGINNINGS)),
    "pser.sweep.seeds": _swept((13, 14, 15), ("td",)),
}
SOURCES = (
    CLIFFWALK,
    THEOREM,
    SWEEP,
    LONGER_SWEEP,
    VARIANTS,
    printed.TABLE,
    printed.CHANGES,
    printed.SCORED,
    *(
        printed.settings(f"pser_{number}", "pser", parts=parts)
        for number, parts in (
            (2, ("replay pser", "agent with pser")),
            (3, ("agent dqn", "loop", "sizes", "environment")),
            (4, ("replay per", "agent with per")),
        )
    ),
)
