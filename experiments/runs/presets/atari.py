"""Settings for Atari: Rainbow and its relatives, PER, LAP, PSER and NERS.

Intervals are in agent steps of 4 frames; those of target networks and exploration are in updates.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.runs.presets.preset import Options, Preset, Settings
from jaxreplay.methods import lap, pal

# fmt: off
_LOOP: Options = {  # 200 million frames
    "steps": 50_000_000, "n_step": 1, "gamma": 0.99, "warmup": 50_000, "random_warmup": True,
    "learn_every": 4, "updates": 1, "eval_every": 250_000, "eval_episodes": 10,
    "eval_epsilon": 0.001,
}
_SIZES: Options = {"capacity": 1_000_000, "batch_size": 32}
_atari = partial(Preset, sizes=_SIZES, env="atari/Breakout")
_DQN: Options = {
    "double": True, "dueling": False, "munchausen": False, "network": "nature",
    "optimiser": "rmsprop", "rmsprop_decay": 0.95, "max_grad_norm": 0.0, "tau": 1.0,
    "epsilon_start": 1.0, "epsilon_end": 0.01, "epsilon_updates": 250_000,
}
_WHOLE_GAMES = "Evaluations are 10 whole games, not 500 thousand frames."


# Rainbow

_RAINBOW: Options = {
    "double": True, "dueling": True, "noisy": True, "atoms": 51, "v_min": -10.0, "v_max": 10.0,
    "optimiser": "adam", "adam_eps": 1.5e-4, "target_every": 2_000,
}
_PRIORITIES: tuple[Options, ...] = ({"alpha": 0.5}, {"beta": 0.4, "beta_end": 1.0})
# Hessel et al. 2018, Tab. 1: the target network is copied every 32 000 frames, 8 000 steps.
_CANONICAL = _atari(
    "Rainbow for Atari, 200 million frames (Hessel et al. 2018)",
    agents={"rainbow": {
        **_RAINBOW, "sigma": 0.5, "priority": "kl", "network": "nature",
        "learning_rate": 6.25e-5, "max_grad_norm": 0.0,  # gradients are not clipped
    }},
    replays={"per": Settings(), "uniform": Settings()},
    loop={**_LOOP, "n_step": 3, "warmup": 20_000, "random_warmup": False},
    shared=_PRIORITIES,
    differs=(_WHOLE_GAMES,),
)
# From the code of Oh et al. 2021, with the settings of van Hasselt et al. 2019.
_LITTLE_DATA = Preset(
    "Rainbow for Atari, 100 thousand agent steps (van Hasselt et al. 2019; Oh et al. 2021)",
    agents={"rainbow": {
        **_RAINBOW, "sigma": 0.1, "priority": "cross_entropy", "network": "data_efficient",
        "learning_rate": 1e-4, "max_grad_norm": 10.0,
    }},
    replays={"per": Settings(), "uniform": Settings()},
    loop={
        **_LOOP, "steps": 100_000, "n_step": 20, "warmup": 1_600, "random_warmup": False,
        "learn_every": 1, "eval_every": 1_000, "eval_episodes": 5,
    },
    sizes={"capacity": 100_000, "batch_size": 32},
    shared=_PRIORITIES,
    environment={"protocol": "ners"},
    env="atari/MsPacman",
)
# Networks and learning rate of the sampler of Oh et al. 2021, from the authors' code.
NERS_SAMPLER: Options = {
    "reward": "evaluation", "hidden": (128, 256, 128, 64), "score_hidden": (128, 64),
    "learning_rate": 1e-4, "normalise": "batch",
}
_NERS = _LITTLE_DATA._replace(
    about="Rainbow for Atari, 100 thousand agent steps, the authors' code (Oh et al. 2021)",
    replays={
        "ners": Settings({
            **NERS_SAMPLER, "gradient": "none", "time_feature": "episode", "squash": True,
            "train_size": 32,
        }),
        "uniform": Settings(), "per": Settings(), "ero": Settings(),
    },
    differs=(
        "The code rewards by the change since the first evaluation, the paper and this since "
        "the latest.",
        "It caches the largest online Q as a feature, the paper and this the target.",
    ),
)


def _quantiles(about: str, warmup: int, **agent: Any) -> Preset:
    """Return settings of the papers on distributional RL and of their code, dqn_zoo."""
    return _atari(
        f"{about} for Atari, 200 million frames",
        agents={"rainbow": {
            "double": False, "dueling": False, "noisy": False, "kappa": 1.0, "network": "nature",
            "optimiser": "adam", "learning_rate": 5e-5, "adam_eps": 0.01 / 32,
            "target_every": 2_500, "epsilon_start": 1.0, "epsilon_end": 0.01,
            "epsilon_updates": 250_000, **agent,
        }},
        replays={"uniform": Settings()},
        loop={**_LOOP, "warmup": warmup},
        differs=(_WHOLE_GAMES,),
    )


# Prioritised experience replay (Schaul et al. 2016, Tab. 3, Double DQN). The learning rate of the
# baseline is 4 times as large and its epsilon 16 times, so that the largest effective learning
# rate, learning rate / sqrt(epsilon), is the same.

_PER_ARMS = {
    "per": Settings(
        {"alpha": 0.6, "beta": 0.4, "beta_end": 1.0, "clip": 1.0, "normalise": "batch"}
    ),
    "rank": Settings({"alpha": 0.7, "beta": 0.5, "beta_end": 1.0, "normalise": "batch"}),
    "uniform": Settings({}, {"learning_rate": 2.5e-4, "rmsprop_eps": 0.01 / 32**2}),
}


def _per(variant: str, replay: str) -> Preset:
    """Return the preset with `replay` as its default method."""
    return _atari(
        f"Double DQN for Atari, 200 million frames, {variant} (Schaul et al. 2016)",
        agents={"dqn": {
            **_DQN, "learning_rate": 2.5e-4 / 4, "rmsprop_eps": 0.01 / 32**2 / 4**2,
            "rmsprop_eps_in_root": True, "target_every": 7_500,  # 30 000 agent steps
        }},
        replays={replay: _PER_ARMS[replay], **_PER_ARMS},
        loop={**_LOOP, "eval_epsilon": 0.01},
        environment={"protocol": "per"},
        differs=(
            "The paper leaves RMSProp, exploration, warm-up and target period to Double DQN's "
            "tuned version: they are DQN Zoo's (Quan & Ostrovski 2020).",
            "Its network has a bias that all actions share, ours has one each.",
            "Evaluations are 10 whole games every million frames, neither 500 thousand frames nor "
            "human starts.",
            "With uniform replay the agent's step size is the baseline's, 4 times as large.",
            "The early rank-based DQN (alpha from 0.5 to 0, no importance weights) is not this.",
        ),
    )


# LAP and PAL (Fujimoto, Meger & Precup 2020, Tab. 7)

_LAP = _atari(
    "Double DQN for Atari, 200 million frames (Fujimoto et al. 2020, Tab. 7)",
    agents={"dqn": {
        **_DQN, "learning_rate": 6.25e-5, "rmsprop_eps": 1e-5, "rmsprop_eps_in_root": False,
        "target_every": 8_000,
    }},
    replays={
        "lap": Settings({"sampling": "iid", **lap.DISCRETE}),
        "uniform": Settings(),
        "per": Settings({
            "sampling": "iid", "alpha": 0.6, "beta": 0.4, "beta_end": 1.0, "epsilon": 1e-10,
        }),
        "pal": Settings(pal.DISCRETE),
    },
    loop={**_LOOP, "warmup": 20_000, "eval_every": 50_000},
    environment={"protocol": "lap"},
    differs=(
        "The authors' code shows the network pixels from 0 to 255, here they are divided by 255.",
        "It leaves out the last transition of games that are cut off, and gives the largest "
        "priority to the slot after a new transition.",
        "The table gives beta 0.4; the authors' code raises it to 1, as here.",
    ),
)

# Prioritised sequence experience replay (Brittain et al. 2019, App. Tab. 1 to 4, and the authors'
# configuration files).

_PSER = _atari(
    "DQN for Atari, 200 million frames, the authors' code (Brittain et al. 2019)",
    agents={"dqn": {
        **_DQN, "double": False, "learning_rate": 2.5e-4, "rmsprop_eps": 1e-5,
        "rmsprop_eps_in_root": True, "target_every": 2_500,  # 10 000 agent steps
    }},
    replays={
        "pser": Settings({
            "alpha": 0.5, "beta": 0.5, "rho": 0.4, "window": 5, "eta": 0.7, "combine": "max",
            "initial": "max", "decay_on_add": False, "decay_space": "leaf", "leaf": "sqrt_huber",
        }),
        "per": Settings({"alpha": 0.5, "beta": 0.5, "beta_end": 0.5, "epsilon": 1e-10}),
        "uniform": Settings(),
    },
    loop=_LOOP,
    environment={"protocol": "pser"},
    differs=(
        "Leaves and their decay are the code's; the text's are decay_space raw, leaf power.",
        "The code's PER takes the root of the Huber loss as leaf too: that is a pser with rho "
        "1e-9, window 1 and eta 0.",
        "Evaluations are 10 whole games every million frames, not 500 thousand frames.",
        "The code learns no bootstrapped value where a game is cut off, and its RMSProp starts "
        "from a mean square of 1.",
    ),
)
# fmt: on

PRESETS: Mapping[str, Preset] = {
    "canonical": _CANONICAL,
    "data_efficient": _LITTLE_DATA,
    "qr_dqn": _quantiles(
        "QR-DQN (Dabney et al. 2018a)", 50_000, head="quantile", quantiles=200, max_grad_norm=10.0
    ),
    "iqn": _quantiles(
        "IQN (Dabney et al. 2018b)", 20_000, head="implicit", quantiles=64, averaged=32,
        embedding=64, max_grad_norm=0.0,
    ),
    "per_proportional": _per("proportional", "per"),
    "per_rank": _per("rank-based", "rank"),
    "lap_atari": _LAP,
    "pser": _PSER,
    "ners_rainbow": _NERS,
}  # fmt: skip
