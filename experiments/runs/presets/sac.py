"""The settings of SAC's successors, of their papers and the authors' code.

REDQ (Chen et al. 2021), DroQ (Hiraoka et al. 2022), SR-SAC (D'Oro et al. 2023), RLPD (Ball et al.
2023), CrossQ (Bhatt et al. 2024) and SimBa (Lee et al. 2025).
"""

from collections.abc import Mapping

from experiments.runs.presets.preset import Options, Preset, Settings

_LOOP: Options = {
    "n_step": 1,
    "gamma": 0.99,
    "warmup": 5_000,
    "random_warmup": True,
    "learn_every": 1,
}
_SIZES: Options = {"capacity": 1_000_000, "batch_size": 256}
_UNIFORM = {"uniform": Settings()}
_RATES: Options = {
    "hidden": (256, 256),
    "actor_learning_rate": 3e-4,
    "critic_learning_rate": 3e-4,
    "alpha_learning_rate": 3e-4,
    "initial_alpha": 1.0,
    "target_entropy": -0.5,
    "tau": 0.005,
}
_REDQ: Options = {
    **_RATES,
    "critics": 10,
    "target_subset": 2,
    "actor_reduce": "mean",
    "policy_delay": 20,
}
_DROPOUT: Options = {"critics": 2, "target_subset": None, "layer_norm": True, "dropout": 0.01}
_CROSSQ: Options = {
    "hidden": (256, 256),
    "critic_hidden": (2_048, 2_048),
    "actor_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "alpha_learning_rate": 1e-3,
    "adam_b1": 0.5,
    "initial_alpha": 1.0,
    "target_entropy": -1.0,
    "batch_renorm": True,
    "renorm_warmup": 100_000,
    "target_network": False,
    "policy_delay": 3,
}
_TWENTY: Options = {
    **_LOOP,
    "steps": 300_000,
    "updates": 20,
    "eval_every": 1_000,
    "eval_episodes": 1,
}
_VERSION = "Old versions of the tasks ran on another MuJoCo: scores differ, their order may not."
_TOGETHER = "The actor learns from critics after their step; the paper's code takes those before."
_ENTROPY = "The target entropy is that of Ant, -4; the code has others for other tasks."

_crossq = Preset(
    "CrossQ for MuJoCo, 5 million agent steps (Bhatt et al. 2024)",
    agents={"sac": _CROSSQ},
    replays=_UNIFORM,
    loop={
        **_LOOP,
        "steps": 5_000_000,
        "updates": 1,
        "eval_every": 5_000_000 // 300,
        "eval_episodes": 1,
    },
    sizes=_SIZES,
    env="gymnasium/HumanoidStandup-v5",
    differs=(
        _VERSION,
        "Networks are initialised as in Torch, and the shift of batch renormalisation is exact.",
    ),
)

PRESETS: Mapping[str, Preset] = {
    "redq": Preset(
        "REDQ for MuJoCo, 300 thousand agent steps, 20 updates each (Chen et al. 2021)",
        agents={"sac": {**_REDQ, "alpha_loss": "log_alpha"}},
        replays=_UNIFORM,
        loop=_TWENTY,
        sizes=_SIZES,
        env="gymnasium/Ant-v5",
        differs=(_VERSION, _ENTROPY, _TOGETHER),
    ),
    "droq": Preset(
        "DroQ for MuJoCo, 300 thousand agent steps, 20 updates each (Hiraoka et al. 2022)",
        agents={"sac": {**_REDQ, **_DROPOUT, "alpha_loss": "log_alpha"}},
        replays=_UNIFORM,
        loop=_TWENTY,
        sizes=_SIZES,
        env="gymnasium/Ant-v5",
        differs=(
            _VERSION,
            _ENTROPY,
            "The dropout rate is that of Ant, 0.01; the code has others for other tasks.",
            "The actor learns from the last of the 20 batches, not from one of its own.",
        ),
    ),
    "crossq": _crossq,
    "crossq_small": _crossq._replace(
        about="CrossQ with critics of 256 units, at a sixtieth of the cost",
        agents={"sac": {**_CROSSQ, "critic_hidden": (256, 256)}},
        differs=(*_crossq.differs, "The paper's critics have 2048 units in each layer."),
    ),
    "sr_sac": Preset(
        "SR-SAC for the Control Suite, 500 thousand steps, 32 updates each (D'Oro et al. 2023)",
        agents={"sac": {**_RATES, "reset_every": 2_560_000}},
        replays=_UNIFORM,
        loop={
            **_LOOP,
            "steps": 500_000,
            "warmup": 10_000,
            "updates": 32,
            "eval_every": 5_000,
            "eval_episodes": 10,
        },
        sizes=_SIZES,
        env="playground/CheetahRun",
        differs=(
            "Each reset draws other parameters; the authors' code returns to the first ones.",
        ),
    ),
    "simba": Preset(
        "SAC with SimBa's networks for the Control Suite, 500 thousand steps (Lee et al. 2025)",
        agents={
            "sac": {
                "network": "residual",
                "hidden": (128,),
                "critic_hidden": (512, 512),
                "critics": 1,
                "actor_learning_rate": 1e-4,
                "critic_learning_rate": 1e-4,
                "alpha_learning_rate": 1e-4,
                "weight_decay": 0.01,
                "initial_alpha": 0.01,
                "target_entropy": -0.5,
                "tau": 0.005,
            }
        },
        replays=_UNIFORM,
        loop={
            **_LOOP,
            "steps": 500_000,
            "updates": 2,
            "eval_every": 25_000,
            "eval_episodes": 10,
            "scale_observations": True,
        },
        sizes=_SIZES,
        env="playground/HumanoidWalk",
        differs=(
            "Observations are standardised by statistics of the warm-up, not by running ones.",
            "Actions are not repeated; the paper repeats each once.",
            "Networks are initialised as in Torch, not orthogonally.",
            "One critic is for tasks that never terminate: others take --agent.critics 2.",
        ),
    ),
    "rlpd": Preset(
        "RLPD for MuJoCo, 250 thousand agent steps, 20 updates each (Ball et al. 2023)",
        agents={"sac": {**_REDQ, "layer_norm": True}},
        replays=_UNIFORM,
        loop={**_TWENTY, "steps": 250_000, "eval_every": 5_000, "eval_episodes": 10},
        sizes={"capacity": 250_000, "batch_size": 256, "demos_share": 0.5},
        env="gymnasium/HalfCheetah-v5",
        differs=(
            _VERSION,
            "It needs --demos FILE, such as a replay that another run saved.",
            "Losses are sums over critics, not means, which Adam makes nearly equal.",
        ),
    ),
}
