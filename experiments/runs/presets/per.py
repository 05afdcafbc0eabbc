"""The settings of prioritised experience replay for Atari (Schaul et al. 2016)."""

from collections.abc import Mapping

from experiments.runs.presets.preset import Preset, Settings

# Tab. 3, of Double DQN. The baseline's step size is 4 times as large and its epsilon 16 times, so
# that the largest step for a gradient, step size / sqrt(epsilon), is the same.
_ARMS = {
    "per": Settings(
        {"alpha": 0.6, "beta": 0.4, "beta_end": 1.0, "clip": 1.0, "normalise": "batch"}
    ),
    "rank": Settings({"alpha": 0.7, "beta": 0.5, "beta_end": 1.0, "normalise": "batch"}),
    "uniform": Settings({}, {"learning_rate": 2.5e-4, "rmsprop_eps": 0.01 / 32**2}),
}
_DIFFERS = (
    "The paper leaves RMSProp, exploration, warm-up and target period to Double DQN's tuned "
    "version: they are DQN Zoo's (Quan & Ostrovski 2020).",
    "Its network has a bias that all actions share, ours has one each.",
    "Evaluations are 10 whole games every million frames, neither 500 thousand frames nor human "
    "starts.",
    "With uniform replay the agent's step size is the baseline's, 4 times as large.",
    "The early rank-based DQN (alpha from 0.5 to 0, no importance weights) is not this.",
)


def _preset(variant: str, replay: str) -> Preset:
    """Make the preset whose own method is `replay`."""
    others = {name: arm for name, arm in _ARMS.items() if name != replay}
    return Preset(
        f"Double DQN for Atari, 200 million frames, {variant} (Schaul et al. 2016)",
        agents={
            "dqn": {
                "double": True,
                "dueling": False,
                "munchausen": False,
                "network": "nature",
                "optimiser": "rmsprop",
                "learning_rate": 2.5e-4 / 4,
                "rmsprop_decay": 0.95,
                "rmsprop_eps": 0.01 / 32**2 / 4**2,
                "rmsprop_eps_in_root": True,
                "max_grad_norm": 0.0,
                "target_every": 7_500,  # 30 000 agent steps
                "tau": 1.0,
                "epsilon_start": 1.0,
                "epsilon_end": 0.01,
                "epsilon_updates": 250_000,  # 4 million frames, 2 %
            }
        },
        replays={replay: _ARMS[replay], **others},
        loop={
            "steps": 50_000_000,
            "n_step": 1,
            "gamma": 0.99,
            "warmup": 50_000,
            "random_warmup": True,
            "learn_every": 4,
            "updates": 1,
            "eval_every": 250_000,
            "eval_episodes": 10,
            "eval_epsilon": 0.01,
        },
        sizes={"capacity": 1_000_000, "batch_size": 32},
        environment={"protocol": "per"},
        env="atari/Breakout",
        differs=_DIFFERS,
    )


PRESETS: Mapping[str, Preset] = {
    "per_proportional": _preset("proportional", "per"),
    "per_rank": _preset("rank-based", "rank"),
}
