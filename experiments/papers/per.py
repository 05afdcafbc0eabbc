"""Figures and tables of prioritized experience replay (Schaul et al. 2016)."""

from typing import Any

from experiments.papers import cliffwalk, cliffwalk_tables, digits, gains, layouts, tasks
from experiments.papers.entry import Arm, Computation, Entry, Experiment, Layout, Size
from experiments.papers.printed import printed, settings
from experiments.papers.tasks import MINATAR

_TABULAR = ("uniform", "oracle", "greedy", "proportional", "rank", "pser")
_SCALE = (
    "100 000 agent steps in place of 50 million, an update per four steps: 8 replays per "
    "transition, as there."
)
_OTHER_SCALE = f"Three games of ten by ten pixels in place of 49 to 57 Atari games, {_SCALE}"
_ONE_GAME = f"Breakout on ten by ten pixels in place of an Atari game, {_SCALE}"

CLIFFWALK = Computation(
    "cliffwalk_sizes",
    cliffwalk_tables.updates_by_size,
    {"states": tuple(range(2, 17)), "seeds": 10, "methods": _TABULAR},
    {"states": (2, 3), "seeds": 2, "methods": ("uniform", "proportional")},
    cliffwalk_tables.SOURCES, unit="updates", higher_is_better=False, ratios=True, minutes=12,
)  # fmt: skip


# Learning rate of the baseline, and a quarter of it.
_FULL, _QUARTER = {"learning_rate": 2.5e-4}, {"learning_rate": 2.5e-4 / 4}
_BETA_0, _BETA_1 = {"beta": 0.0, "beta_end": 0.0}, {"beta": 1.0, "beta_end": 1.0}

BETAS = Experiment(
    "minatar_dqn_beta",
    "dqn",
    {
        "uniform": Arm("uniform"),
        "beta_0": Arm("per", _BETA_0, agent_options=_QUARTER),
        "beta_1": Arm("per", _BETA_1, agent_options=_FULL),
    },
    tasks.ONE_GAME,
    Size(("atari/Breakout",), 1, preset="per_proportional"),
)

BETAS_AT_EQUAL_STEPS = Experiment(
    "minatar_dqn_beta_steps",
    "dqn",
    {
        "uniform_quarter": Arm("uniform", agent_options=_QUARTER),
        "beta_0_quarter": Arm("per", _BETA_0, agent_options=_QUARTER),
        "beta_0_full": Arm("per", _BETA_0, agent_options=_FULL),
        "beta_1_full": Arm("per", _BETA_1, agent_options=_FULL),
    },
    tasks.ONE_GAME,
    Size(
        ("atari/Breakout",), 1, preset="per_proportional",
        agent={"rmsprop_eps": 0.01 / 32**2},  # that of the baseline, for all arms
    ),
)  # fmt: skip

_ATARI_LOST = (
    "the scores of proportional prioritisation are lost in several cells of our copy, and human "
    "starts, of which the main table is made, can't be had."
)
_ARMS = ("uniform", "rank", "per")
_OVER_UNIFORM = {
    "rank over uniform": ("rank", "uniform"),
    "proportional over uniform": ("per", "uniform"),
}
_ATARI: dict[str, Any] = {"comparable": False, "published": tasks.ATARI_PER}
_SAME = "The same runs as per.tab1."


def _curves(aggregate: str) -> Layout:
    return Layout(layouts.lines, {"aggregate": aggregate, "smooth": 0.05})


ENTRIES = (
    Entry(
        "per.fig1", "Blind Cliffwalk: updates until learned, by the size of the memory", CLIFFWALK,
        Layout(
            layouts.lines,
            {"x": "size", "y": "value", "panel": "values", "aggregate": "median, range",
             "x_label": "transitions in the memory", "y_label": "updates", "log": "xy"},
            {"kind": "updates"},
        ),
        ("uniform", "oracle"),
        lost="alpha, beta and epsilon of this experiment are not given; here alpha is 0.6 (0.7 for "
        "rank), beta 0, epsilon 1e-4.",
        note=("A point is missing where a seed did not converge within 10 updates per stored "
              "transition (40 for uniform replay).",),
    ),
    Entry(
        "per.fig2", "Blind Cliffwalk of 16 states: error against updates, table and linear",
        CLIFFWALK,
        Layout(
            layouts.lines,
            {"x": "updates", "y": "value", "panel": "values", "aggregate": "median, range",
             "x_label": "updates (dots: converged)", "y_label": "mean squared error", "log": "xy",
             "nested": _TABULAR[2:], "converged": {"kind": "updates", "n": 16},
             "level": cliffwalk.CONVERGED},
            {"kind": "error"},
        ),
    ),
    Entry(
        "per.tab1", "Atari: normalised scores of uniform, rank-based and proportional",
        MINATAR, arms=_ARMS, reported=printed("per_tab1"), lost=_ATARI_LOST,
        ours=lambda data: gains.mean_and_median(data, _OVER_UNIFORM),
        **_ATARI, note=(_OTHER_SCALE,
                        "Without a human's scores of these games, gains over uniform replay stand "
                        "in for normalised scores."),
    ),
    *(
        Entry(
            f"per.{name}", shows, MINATAR, layout, _ARMS, reported=printed("per_tab6"),
            lost=_ATARI_LOST, **_ATARI, note=(*figure, _SAME, _OTHER_SCALE),
        )
        for name, shows, layout, *figure in (
            ("fig3", "Atari: gain over uniform replay, game by game",
             Layout(layouts.scores, {"baseline": "uniform"})),
            ("fig9", "Atari: DQN with and without rank-based replay, game by game, human starts",
             None, "Its figure is that of per.fig3 here."),
            ("tab6", "Atari: scores of every game", None),
            ("tab7", "Atari: normalised scores of every game", None),
        )
    ),
    Entry(
        "per.fig4", "Atari: how soon the baseline's final score is reached", MINATAR,
        Layout(layouts.sooner, {"baseline": "uniform"}), _ARMS,
        reported=printed("per_fig4"),
        ours=lambda data: gains.until_baseline(data, ("rank", "per"), "uniform"),
        **_ATARI, note=(_SAME, _OTHER_SCALE),
    ),
    Entry(
        "per.fig5", "Class-imbalanced digits: test error and loss against updates", digits.DIGITS,
        Layout(
            layouts.lines,
            {"x": "updates", "y": "value", "panel": "measure", "aggregate": "median, range",
             "x_label": "updates",
             "y_label": {"test error": "share of images", "test loss": "nats",
                         "train loss": "nats"}},
            {"kind": "curve"},
        ),
        ("uniform", "informed", "per"), comparable=False,
        note=(
            "scikit-learn's 1797 digits of 8x8 in place of MNIST: of every digit 100 for training, "
            "30 for validation and 44 for testing.",
            "4 images of each digit from 0 to 4 are kept, 1 to 25 of the others, in place of "
            "1 to 100; the informed arm multiplies their loss by 25 in place of 100.",
            "The panel of the training loss is not in the paper; the median and range are of 64 "
            "seeds, of 3 there.",
            "The step size is chosen on the first 16 seeds, by the mean validation error after "
            "the last update. With 3 seeds, as in the paper, two earlier runs chose 0.03 and 0.01 "
            "for PER.",
            "A first test had 20 seeds, with the same verdicts.",
        ),
    ),
    Entry(
        "per.fig6", "The network that classifies digits", None,
        missing="it is a diagram of the network, no result, and our copy lost its layer sizes. "
        "Ours: twice a 3x3 convolution (6, then 16 channels), ReLU and 2x2 max pooling; then 32 "
        "units, ReLU, and 10 outputs.",
    ),
    Entry(
        "per.fig7", "Atari: learning curves of all games", MINATAR,
        _curves("median, quartiles"), _ARMS, **_ATARI, note=(_SAME, _OTHER_SCALE),
    ),
    Entry(
        "per.fig8", "Atari: learning curves of selected games, 8 seeds", MINATAR,
        arms=_ARMS, **_ATARI, note=("Its figure is that of per.fig7 here.", _SAME, _OTHER_SCALE),
    ),
    Entry(
        "per.fig10", "Last-seen TD errors of the memory over training", MINATAR,
        Layout(
            layouts.lines,
            {"y": "stored/abs_td", "y_label": "mean |TD error| of what is stored",
             "aggregate": "median, quartiles"},
        ),
        _ARMS, **_ATARI,
        note=("The mean over the memory, not its sorted profile.", _SAME, _OTHER_SCALE),
    ),
    Entry(
        "per.fig11", "How unevenly the memory is replayed", MINATAR,
        Layout(
            layouts.lines,
            {"y": "replayed/effective_buffer", "y_label": "share of the memory in use",
             "aggregate": "median, quartiles", "limits": (0, 1)},
        ),
        _ARMS,
        **_ATARI, note=(
            "No claim: that prioritised replay uses less of its memory than uniform replay, all of "
            "it, is so by definition.",
            "The paper plots the probability of replay against the size of the TD error at one "
            "moment, here it is the share of the memory in effective use, over training.",
            _SAME, _OTHER_SCALE,
        ),
    ),
    Entry(
        "per.fig12", "Importance weights in full (beta 1, the baseline's step size) or none "
        "(beta 0, a quarter of it)", BETAS, _curves("median, quartiles"), comparable=False,
        note=(
            _ONE_GAME,
            "As in the paper, beta 0 has a quarter of the step size; with 24 000 updates of Adam, "
            "the step size by itself may be what makes it slower. At equal ones, in "
            "per.fig12.steps, nothing is told apart.",
        ),
    ),
    Entry(
        "per.fig12.steps", "Importance weights in full (beta 1) or none (beta 0), at equal "
        "step sizes", BETAS_AT_EQUAL_STEPS, _curves("median, quartiles"), comparable=False,
        note=(
            "Not a figure of the paper: per.fig12 without its difference in step size, thought of "
            "when that had been run. beta_0_quarter and beta_1_full are its beta_0 and beta_1 once "
            "more, so that one side of each claim was known; the other, uniform_quarter and "
            "beta_0_full, was not.",
            _ONE_GAME,
        ),
    ),
    Entry(
        "per.tab3", "Settings of the Atari experiments",
        settings("per", "per_proportional", "per_rank"),
    ),
    *(
        Entry(f"per.{name}", shows, None, missing=why)
        for name, shows, why in (
            ("tab2", "Settings that were searched", "the table names the values that were tried, "
             "without results."),
            ("tab4", "Evaluation protocol with human starts", "the starts, recorded from a human "
             "expert, were not published."),
            ("tab5", "Epsilon of the policy in each way of evaluating", "a setting for evaluations "
             "that are not made here; the presets hold the one that is."),
        )
    ),
)  # fmt: skip
