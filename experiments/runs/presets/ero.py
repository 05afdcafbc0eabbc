"""The settings of experience replay optimisation (Zha et al. 2019)."""

from collections.abc import Mapping

from experiments.runs.presets.preset import Preset, Settings

PRESETS: Mapping[str, Preset] = {
    "ero": Preset(
        "DDPG of OpenAI's baselines, one million agent steps (Zha et al. 2019)",
        agents={
            "ddpg": {
                "bounded": True,
                "hidden": (64, 64),
                "activation": "relu",
                "actor_learning_rate": 1e-4,
                "critic_learning_rate": 1e-3,
                "critic_weight_decay": 1e-2,
                "anneal": 0.0,
                "tau": 0.001,
                "noise": "ou",
                "noise_std": 0.2,
            }
        },
        replays={
            "ero": Settings({"hidden": (64, 64), "learning_rate": 1e-4, "batch_size": 64}),
            "uniform": Settings(),
            "per": Settings(),
            "rank": Settings(),
        },
        loop={
            "steps": 1_000_000,
            "n_step": 1,
            "gamma": 0.99,
            "warmup": 100,
            "random_warmup": False,
            "learn_every": 100,
            "updates": 50,
            "eval_every": 2_000,
            "eval_episodes": 10,
            "scale_observations": False,
            "scale_rewards": False,
        },
        sizes={"capacity": 1_000_000, "batch_size": 64},
        env="gymnasium/HalfCheetah-v5",
        differs=(
            "Layers are not normalised, and observations not by running statistics, as they are in "
            "the baselines' code.",
            "The critic takes the action at its first layer, there at its second.",
            "The Ornstein-Uhlenbeck process (theta 0.15) moves by whole steps, there by "
            "hundredths.",
            "These are that code's settings: whether the paper changed any was not checked.",
        ),
    ),
}
