"""Settings of Rainbow (Hessel et al. 2018), also for little data, and of QR-DQN and IQN."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from experiments.runs.presets.preset import Options, Preset, Settings

DISTRIBUTIONAL: Options = MappingProxyType(
    {
        "double": True,
        "dueling": True,
        "noisy": True,
        "atoms": 51,
        "v_min": -10.0,
        "v_max": 10.0,
        "optimiser": "adam",
        "adam_eps": 1.5e-4,
        "target_every": 2_000,
    }
)
# Of the code of Oh et al. 2021, which has the settings of van Hasselt et al. 2019.
LITTLE_DATA = Preset(
    "Rainbow for Atari, 100 thousand agent steps (van Hasselt et al. 2019; Oh et al. 2021)",
    agents={
        "rainbow": {
            **DISTRIBUTIONAL,
            "sigma": 0.1,
            "priority": "cross_entropy",
            "network": "data_efficient",
            "learning_rate": 1e-4,
            "max_grad_norm": 10.0,
        }
    },
    replays={"per": Settings(), "uniform": Settings()},
    loop={
        "steps": 100_000,
        "n_step": 20,
        "gamma": 0.99,
        "warmup": 1_600,
        "random_warmup": False,
        "learn_every": 1,
        "updates": 1,
        "eval_every": 1_000,
        "eval_episodes": 5,
        "eval_epsilon": 0.001,
    },
    sizes={"capacity": 100_000, "batch_size": 32},
    shared=({"alpha": 0.5}, {"beta": 0.4, "beta_end": 1.0}),
    environment={"protocol": "ners"},
    env="atari/MsPacman",
)

# Of the papers and the code of their first author's group, dqn_zoo, in agent steps of 4 frames.
QUANTILES: Options = MappingProxyType(
    {
        "double": False,
        "dueling": False,
        "noisy": False,
        "kappa": 1.0,
        "network": "nature",
        "optimiser": "adam",
        "learning_rate": 5e-5,
        "adam_eps": 0.01 / 32,
        "target_every": 2_500,
        "epsilon_start": 1.0,
        "epsilon_end": 0.01,
        "epsilon_updates": 250_000,
    }
)


def _quantiles(about: str, warmup: int, **agent: Any) -> Preset:
    return Preset(
        f"{about} for Atari, 200 million frames",
        agents={"rainbow": {**QUANTILES, **agent}},
        replays={"uniform": Settings()},
        loop={
            "steps": 50_000_000,
            "n_step": 1,
            "gamma": 0.99,
            "warmup": warmup,
            "random_warmup": True,
            "learn_every": 4,
            "updates": 1,
            "eval_every": 250_000,
            "eval_episodes": 10,
            "eval_epsilon": 0.001,
        },
        sizes={"capacity": 1_000_000, "batch_size": 32},
        env="atari/Breakout",
        differs=("Evaluations are 10 whole games, not 500 thousand frames.",),
    )


PRESETS: Mapping[str, Preset] = {
    # Hessel et al. 2018, Tab. 1, in agent steps of 4 frames. Its target network is copied every
    # 32 000 frames, 8 000 steps: every 2 000 updates. Gradients are not clipped.
    "canonical": Preset(
        "Rainbow for Atari, 200 million frames (Hessel et al. 2018)",
        agents={
            "rainbow": {
                **DISTRIBUTIONAL,
                "sigma": 0.5,
                "priority": "kl",
                "network": "nature",
                "learning_rate": 6.25e-5,
                "max_grad_norm": 0.0,
            }
        },
        replays={"per": Settings(), "uniform": Settings()},
        loop={
            "steps": 50_000_000,
            "n_step": 3,
            "gamma": 0.99,
            "warmup": 20_000,
            "random_warmup": False,
            "learn_every": 4,
            "updates": 1,
            "eval_every": 250_000,
            "eval_episodes": 10,
            "eval_epsilon": 0.001,
        },
        sizes={"capacity": 1_000_000, "batch_size": 32},
        shared=({"alpha": 0.5}, {"beta": 0.4, "beta_end": 1.0}),
        env="atari/Breakout",
        differs=("Evaluations are 10 whole games, not 500 thousand frames.",),
    ),
    "data_efficient": LITTLE_DATA,
    "qr_dqn": _quantiles(
        "QR-DQN (Dabney et al. 2018a)", 50_000, head="quantile", quantiles=200, max_grad_norm=10.0
    ),
    "iqn": _quantiles(
        "IQN (Dabney et al. 2018b)",
        20_000,
        head="implicit",
        quantiles=64,
        averaged=32,
        embedding=64,
        max_grad_norm=0.0,
    ),
}
