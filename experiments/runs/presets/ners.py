"""The settings of the neural experience replay sampler (Oh et al. 2021)."""

from collections.abc import Mapping

from experiments.runs.presets import rainbow
from experiments.runs.presets.lap import CONTINUOUS_AGENTS, continuous_loop
from experiments.runs.presets.preset import Options, Preset, Settings

# Networks and step size of the sampler, of the authors' code.
_SAMPLER: Options = {
    "reward": "evaluation",
    "hidden": (128, 256, 128, 64),
    "score_hidden": (128, 64),
    "learning_rate": 1e-4,
    "normalise": "batch",
}


def _continuous(agent: str) -> Preset:
    """Make the preset of one of the two agents for continuous actions."""
    loop = {**continuous_loop(500_000), "eval_every": 1_000, "eval_episodes": 5}
    return Preset(
        f"{agent.upper()} for MuJoCo, Box2D and Pendulum*, 500 thousand steps (Oh et al. 2021)",
        agents={agent: CONTINUOUS_AGENTS[agent]},
        replays={
            "ners": Settings(
                {
                    **_SAMPLER,
                    "alpha": 0.6,
                    "beta": 0.4,
                    "beta_end": 1.0,
                    "gradient": "buffer",
                    "time_feature": "run",
                    "squash": False,
                    "train_size": 256,
                    "weigh_actor": True,
                }
            ),
            "uniform": Settings(),
            "per": Settings({"alpha": 0.6, "beta": 0.4, "beta_end": 1.0}),
            "ero": Settings(),
        },
        loop=loop,
        sizes={"capacity": 1_000_000, "batch_size": 256},
        env="sparse_pendulum/Pendulum-v0",
        differs=(
            "The paper prints steps and seeds alone: the agent is that of lap_mujoco, alpha and "
            "beta are PER's, evaluations and the sampler's networks those of the code for Atari.",
            "Actor and critic are weighted (Alg. 1), where PER weights the critic.",
        ),
    )


PRESETS: Mapping[str, Preset] = {
    "ners_td3": _continuous("td3"),
    "ners_sac": _continuous("sac"),
    "ners_rainbow": rainbow.LITTLE_DATA._replace(
        about="Rainbow for Atari, 100 thousand agent steps, the authors' code (Oh et al. 2021)",
        replays={
            "ners": Settings(
                {**_SAMPLER, "gradient": "none", "time_feature": "episode", "squash": True,
                 "train_size": 32}
            ),
            "uniform": Settings(),
            "per": Settings(),
            "ero": Settings(),
        },
        env="atari/MsPacman",
        differs=(
            "The code rewards by the change since the first evaluation, the paper and this since "
            "the latest.",
            "It caches the largest online Q as a feature, the paper and this the target.",
        ),
    ),
}  # fmt: skip
