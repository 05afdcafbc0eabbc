"""Figures and tables of prioritized sequence experience replay (Brittain et al. 2019)."""

import itertools
from collections.abc import Callable

import pandas as pd

from experiments.papers import cliffwalk, cliffwalk_tables, layouts, printed, tasks
from experiments.papers.entry import (
    Arm,
    Claim,
    Computation,
    Entry,
    Exact,
    Experiment,
    Layout,
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

_ERROR = {
    "x": "updates", "y": "value", "panel": "n", "aggregate": "median, range",
    "x_label": "updates (dots: converged)", "y_label": "mean squared error", "log": "xy",
    "nested": ("proportional", "pser"), "converged": {"kind": "updates"},
    "level": cliffwalk.CONVERGED,
}  # fmt: skip
_GARBLED = "rho, alpha, epsilon, eta, seeds and iterations of this experiment are lost in our copy."


_PASS = (
    "From the maximum every stored transition is replayed once before any is replayed by its "
    "error: 2^(n + 1) - 2 updates, of which PER and PSER need hardly more, so that they can hardly "
    "differ there."
)


def _at(n: int) -> dict:
    return {"kind": "updates", "n": n}


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


ENTRIES = (
    Entry(
        "pser.fig2", "Blind Cliffwalk of 16 states: error against updates", CLIFFWALK,
        Layout(layouts.lines, {**_ERROR, "converged": _at(_MOST)}, {"kind": "error", "n": _MOST}),
        lost=_GARBLED, note=(_PASS,),
    ),
    Entry(
        "pser.fig7", "Blind Cliffwalk of 13 to 16 states: error against updates", CLIFFWALK,
        Layout(layouts.lines, _ERROR, {"kind": "error"}),
        lost=_GARBLED, note=("The claim at 16 states stands with pser.fig2.", _PASS),
    ),
    Entry(
        "pser.sweep", "Blind Cliffwalk: PSER beside PER over rho, W, eta, alpha and start",
        SWEEP, Layout(layouts.settings_grid, {"starts": _BEGINNINGS}),
        claims=_swept((_MOST,), tuple(_BEGINNINGS)),
        swept="PSER learns in fewer updates than PER, under many settings (10 seeds)",
        note=("Not a figure of the paper: whether its claim holds with any of its settings.",
              _PASS),
    ),
    Entry(
        "pser.sweep.seeds",
        "Blind Cliffwalk: PSER beside PER over the same settings, from epsilon, 50 seeds",
        LONGER_SWEEP, Layout(layouts.settings_grid, {"starts": _BEGINNINGS}),
        claims=_swept((13, 14, 15), ("td",)),
        swept="PSER learns in fewer updates than PER, under many settings (50 seeds)",
        note=("Not a figure of the paper: with ten seeds and as many claims, pser.sweep can only "
              "decide what goes one way in all of them.",),
    ),
    Entry(
        "pser.thm1", "Theorem 1: expected updates until the whole path is learned", THEOREM,
        claims=(
            Exact("PER needs Eq. 15's updates (priorities from the error after the update, as in "
                  "the proof)", "simulated: per-post"),
            Exact("PSER needs Eq. 16's updates, as an idealised process in which only useful draws "
                  "take a priority away", "simulated: pser-idealised"),
            Exact("PSER needs Eq. 16's updates, with priorities from the error after the update, "
                  "as in the proof", "simulated: pser-post"),
            Exact("PSER needs Eq. 16's updates, with priorities from the error before it, as in "
                  "PER's Alg. 1", "simulated: pser-pre"),
        ),
        lost="the equations, and the end of the proof; Eq. 16 is reconstructed.",
    ),
    Entry(
        "pser.fig3", "Theorem 1: expected updates by the number of states", THEOREM,
        Layout(
            layouts.lines,
            {"x": "n", "y": "value", "panel": "rho", "aggregate": "mean, 95 % interval",
             "x_label": "states n", "y_label": "updates", "log": "y",
             "theory": ("PER (Eq. 15)", "PSER (Eq. 16)"), "repeats": "batches",
             "nested": ("simulated: per-post", "simulated: per-pre", "simulated: pser-idealised",
                        "simulated: pser-pre")},
        ),
    ),
    Entry(
        "pser.tab1", "Atari: normalised scores over 55 games, from the paper's own Tab. 5",
        printed.TABLE,
        claims=(Exact("the printed medians and means follow from the scores", "tab1"),),
        reported=printed.printed("pser_tab1"),
        note=("Data of the paper: nothing is trained.",),
    ),
    Entry(
        "pser.fig9", "Atari: percent change of PSER over PER, game by game", printed.CHANGES,
        Layout(layouts.ranked, {"label": "change of PSER's best score over PER's (%)",
                              "lacking": "as PER's best score is 0"}),
        note=("Data of the paper: nothing is trained.",),
    ),
    Entry(
        "pser.fig5", "Atari: relative performance of PSER and PER on 55 games", printed.CHANGES,
        note=("Its figure is that of pser.fig9 here.", "Data of the paper: nothing is trained."),
        lost="how it is computed; its counts, 8 games against 3, follow from no formula that we "
        "tried.",
    ),
    Entry(
        "pser.tab5", "Atari: best scores of every game", printed.SCORED,
        note=("Data of the paper: nothing is trained.",),
    ),
    Entry(
        "pser.fig6", "Atari, six variants: initial priorities, and maximum or sum", VARIANTS,
        Layout(layouts.lines, {"aggregate": "mean, 95 % interval", "smooth": 0.05}),
        comparable=False, note=("One game of ten by ten pixels in place of six Atari games.",),
    ),
    Entry(
        "pser.fig8", "Atari: learning curves of 60 games, PSER and PER", VARIANTS,
        Layout(layouts.lines, {"aggregate": "mean, 95 % interval", "smooth": 0.05}),
        ("per_max", "pser_max_max"), comparable=False, note=("The runs of pser.fig6.",),
    ),
    Entry(
        "pser.app.tab1", "Settings that were tried", None,
        missing="the table names the values that were tried, without results; pser.sweep tries "
        "others on the Cliffwalk.",
    ),
    *(
        Entry(f"pser.app.tab{number}", shows,
              printed.settings(f"pser_{number}", "pser", parts=parts))
        for number, shows, parts in (
            (2, "Settings that were chosen", ("replay pser", "agent with pser")),
            (3, "Settings of DQN", ("agent dqn", "loop", "sizes", "environment")),
            (4, "Settings of prioritised replay", ("replay per", "agent with per")),
        )
    ),
)  # fmt: skip
