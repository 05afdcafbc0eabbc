"""Settings of TD3+BC (Fujimoto & Gu 2021) and IQL (Kostrikov et al. 2022), for `--demos FILE`."""

from collections.abc import Mapping

from experiments.runs.presets.lap import CONTINUOUS_AGENTS
from experiments.runs.presets.preset import Options, Preset, Settings


def _loop(scale_observations: bool) -> Options:
    return {
        "steps": 1_000_000,  # each with an update
        "n_step": 1,
        "gamma": 0.99,
        "warmup": 0,
        "learn_every": 1,
        "updates": 1,
        "eval_every": 5_000,
        "eval_episodes": 10,
        "scale_observations": scale_observations,
        "scale_rewards": False,
    }


_SIZES: Options = {"batch_size": 256, "demos_share": 1.0}
_ENV = "gymnasium/HalfCheetah-v5"
_DATA = "The paper's data are D4RL's; give a file as --demos."

PRESETS: Mapping[str, Preset] = {
    "td3_bc": Preset(
        "TD3+BC, offline, for MuJoCo, a million updates (Fujimoto & Gu 2021)",
        agents={"td3": {**CONTINUOUS_AGENTS["td3"], "bc_alpha": 2.5}},
        replays={"uniform": Settings()},
        loop=_loop(True),
        sizes=_SIZES,
        env=_ENV,
        differs=(_DATA, "The paper adds 1e-3 to the std that divides observations, here 1e-7."),
    ),
    "iql": Preset(
        "IQL, offline, for MuJoCo, a million updates (Kostrikov et al. 2022)",
        agents={
            "iql": {
                "hidden": (256, 256),
                "actor_learning_rate": 3e-4,
                "critic_learning_rate": 3e-4,
                "value_learning_rate": 3e-4,
                "tau": 0.005,
                "expectile": 0.7,
                "temperature": 3.0,
                "largest_weight": 100.0,
                "actor_updates": 1_000_000,
            }
        },
        replays={"uniform": Settings()},
        loop=_loop(False),
        sizes=_SIZES,
        env=_ENV,
        differs=(
            _DATA,
            "The paper scales rewards to returns in a range of 1000; scale those of the file.",
        ),
    ),
}
