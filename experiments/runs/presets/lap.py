"""The settings of LAP and PAL (Fujimoto, Meger & Precup 2020, Tab. 6 and 7)."""

from collections.abc import Mapping

from experiments.runs.presets.preset import Options, Preset, Settings
from jaxreplay.methods import lap, pal

_SAMPLED = {"sampling": "iid"}  # of the authors' code
_PER = Settings({**_SAMPLED, "alpha": 0.6, "beta": 0.4, "beta_end": 1.0, "epsilon": 1e-10})


def continuous_loop(steps: int) -> Options:
    """Return the loop of the paper's experiments in MuJoCo."""
    return {
        "steps": steps,
        "n_step": 1,
        "gamma": 0.99,
        "warmup": 25_000,
        "random_warmup": True,
        "learn_every": 1,
        "updates": 1,
        "eval_every": 5_000,
        "eval_episodes": 10,
        "scale_observations": False,
        "scale_rewards": False,
    }


# Tab. 6.
CONTINUOUS_AGENTS: Mapping[str, Options] = {
    "td3": {
        "hidden": (256, 256),
        "actor_learning_rate": 3e-4,
        "critic_learning_rate": 3e-4,
        "tau": 0.005,
        "exploration_noise": 0.1,
        "target_noise": 0.2,
        "target_noise_clip": 0.5,
        "policy_delay": 2,
    },
    "sac": {
        "hidden": (256, 256),
        "actor_learning_rate": 3e-4,
        "critic_learning_rate": 3e-4,
        "alpha_learning_rate": 3e-4,
        "tau": 0.005,
        "target_entropy": -1.0,
    },
}


def _without_tau(options: Options) -> Options:
    return {name: value for name, value in options.items() if name != "tau"}


PRESETS: Mapping[str, Preset] = {
    "lap_mujoco": Preset(
        "TD3 and SAC for MuJoCo, 3 million agent steps (Fujimoto et al. 2020, Tab. 6)",
        agents=CONTINUOUS_AGENTS,
        replays={
            "lap": Settings({**_SAMPLED, "alpha": 0.4, "kappa": 1.0}),
            "uniform": Settings(),
            "per": _PER,
            "pal": Settings({"alpha": 0.4, "kappa": 1.0}),
        },
        loop=continuous_loop(3_000_000),
        sizes={"capacity": 1_000_000, "batch_size": 256},
        env="gymnasium/HalfCheetah-v5",
        differs=(
            "Versions 3 of the tasks ran on another MuJoCo: scores differ, their order may not.",
            "The table gives beta 0.4; the authors' code raises it to 1, as here.",
            "The paper gives no options of ERE.",
        ),
    ),
    "td7": Preset(
        "TD7 for MuJoCo, 5 million agent steps, without checkpoints (Fujimoto et al. 2023)",
        agents={
            "td7": {
                **_without_tau(CONTINUOUS_AGENTS["td3"]),
                "encoder_learning_rate": 3e-4,
                "embedding": 256,
                "target_every": 250,
            }
        },
        replays={
            "lap": Settings({**_SAMPLED, "alpha": 0.4, "kappa": 1.0, "maximum": "stored"}),
            "uniform": Settings(),
        },
        loop=continuous_loop(5_000_000),
        sizes={"capacity": 1_000_000, "batch_size": 256},
        env="gymnasium/HalfCheetah-v5",
        differs=(
            "Every step has an update and evaluations are of the policy that learns, as in the "
            "authors' code with its option against checkpoints.",
            "The authors lower the running maximum of the priorities to that of the stored ones "
            "every 250 updates, here it always is the latter.",
        ),
    ),
    "lap_atari": Preset(
        "Double DQN for Atari, 200 million frames (Fujimoto et al. 2020, Tab. 7)",
        agents={
            "dqn": {
                "double": True,
                "dueling": False,
                "munchausen": False,
                "network": "nature",
                "optimiser": "rmsprop",
                "learning_rate": 6.25e-5,
                "rmsprop_decay": 0.95,
                "rmsprop_eps": 1e-5,
                "rmsprop_eps_in_root": False,
                "max_grad_norm": 0.0,
                "target_every": 8_000,
                "tau": 1.0,
                "epsilon_start": 1.0,
                "epsilon_end": 0.01,
                "epsilon_updates": 250_000,
            }
        },
        replays={
            "lap": Settings({**_SAMPLED, **lap.DISCRETE}),
            "uniform": Settings(),
            "per": _PER,
            "pal": Settings(pal.DISCRETE),
        },
        loop={
            "steps": 50_000_000,
            "n_step": 1,
            "gamma": 0.99,
            "warmup": 20_000,
            "random_warmup": True,
            "learn_every": 4,
            "updates": 1,
            "eval_every": 50_000,
            "eval_episodes": 10,
            "eval_epsilon": 0.001,
        },
        sizes={"capacity": 1_000_000, "batch_size": 32},
        environment={"protocol": "lap"},
        env="atari/Breakout",
        differs=(
            "The authors' code shows the network pixels from 0 to 255, here they are divided by "
            "255.",
            "It leaves out the last transition of games that are cut off, and gives the largest "
            "priority to the slot after a new transition.",
            "The table gives beta 0.4; the authors' code raises it to 1, as here.",
        ),
    ),
}
