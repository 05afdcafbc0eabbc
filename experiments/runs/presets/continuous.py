"""Settings for continuous actions: LAP, TD7, NERS, ERO, ReF-ER, offline RL, successors of SAC."""

from collections.abc import Mapping
from functools import partial

from experiments.runs.presets.atari import NERS_SAMPLER
from experiments.runs.presets.preset import Options, Preset, Settings

# fmt: off
_LOOP: Options = {
    "n_step": 1, "gamma": 0.99, "learn_every": 1, "updates": 1, "eval_every": 5_000,
    "eval_episodes": 10,
}
_SIZES: Options = {"capacity": 1_000_000, "batch_size": 256}
_CHEETAH = "gymnasium/HalfCheetah-v5"
_mujoco = partial(Preset, sizes=_SIZES, env=_CHEETAH)
_VERSION = "Old versions of the tasks ran on another MuJoCo: scores differ, their order may not."


# LAP and PAL (Fujimoto, Meger & Precup 2020, Tab. 6), and TD7 (Fujimoto et al. 2023)

_UNSCALED: Options = {
    **_LOOP, "warmup": 25_000, "random_warmup": True, "scale_observations": False,
    "scale_rewards": False,
}
_IID = {"sampling": "iid"}  # from the authors' code
_TWO_HUNDRED: Options = {
    "hidden": (256, 256), "actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4,
}
_TD3: Options = {
    **_TWO_HUNDRED, "exploration_noise": 0.1, "target_noise": 0.2, "target_noise_clip": 0.5,
    "policy_delay": 2,
}
_AGENTS: Mapping[str, Options] = {
    "td3": {**_TD3, "tau": 0.005},
    "sac": {**_TWO_HUNDRED, "alpha_learning_rate": 3e-4, "tau": 0.005, "target_entropy": -1.0},
}
_LAP = {
    "lap_mujoco": _mujoco(
        "TD3 and SAC for MuJoCo, 3 million agent steps (Fujimoto et al. 2020, Tab. 6)",
        agents=_AGENTS,
        replays={
            "lap": Settings({**_IID, "alpha": 0.4, "kappa": 1.0}),
            "uniform": Settings(),
            "per": Settings(
                {**_IID, "alpha": 0.6, "beta": 0.4, "beta_end": 1.0, "epsilon": 1e-10}
            ),
            "pal": Settings({"alpha": 0.4, "kappa": 1.0}),
        },
        loop={**_UNSCALED, "steps": 3_000_000},
        differs=(
            "Versions 3 of the tasks ran on another MuJoCo: scores differ, their order may not.",
            "The table gives beta 0.4; the authors' code raises it to 1, as here.",
            "The paper gives no options of ERE.",
        ),
    ),
    "td7": _mujoco(
        "TD7 for MuJoCo, 5 million agent steps, without checkpoints (Fujimoto et al. 2023)",
        agents={"td7": {
            **_TD3, "encoder_learning_rate": 3e-4, "embedding": 256, "target_every": 250,
        }},
        replays={
            "lap": Settings({**_IID, "alpha": 0.4, "kappa": 1.0, "maximum": "stored"}),
            "uniform": Settings(),
        },
        loop={**_UNSCALED, "steps": 5_000_000},
        differs=(
            "Every step has an update and evaluations are of the policy that learns, as in the "
            "authors' code with its option against checkpoints.",
            "The authors lower the running maximum of the priorities to that of the stored ones "
            "every 250 updates, here it always is the latter.",
        ),
    ),
}


# The neural experience replay sampler (Oh et al. 2021)

def _ners(agent: str) -> Preset:
    return _mujoco(
        f"{agent.upper()} for MuJoCo, Box2D and Pendulum*, 500 thousand steps (Oh et al. 2021)",
        agents={agent: _AGENTS[agent]},
        replays={
            "ners": Settings({
                **NERS_SAMPLER, "alpha": 0.6, "beta": 0.4, "beta_end": 1.0, "gradient": "buffer",
                "time_feature": "run", "squash": False, "train_size": 256, "weigh_actor": True,
            }),
            "uniform": Settings(),
            "per": Settings({"alpha": 0.6, "beta": 0.4, "beta_end": 1.0}),
            "ero": Settings(),
        },
        loop={**_UNSCALED, "steps": 500_000, "eval_every": 1_000, "eval_episodes": 5},
        env="sparse_pendulum/Pendulum-v0",
        differs=(
            "The paper prints steps and seeds alone: the agent is that of lap_mujoco, alpha and "
            "beta are PER's, evaluations and the sampler's networks those of the code for Atari.",
            "Actor and critic are weighted (Alg. 1), where PER weights the critic.",
        ),
    )


# Experience replay optimisation (Zha et al. 2019)

_ERO = _mujoco(
    "DDPG of OpenAI's baselines, one million agent steps (Zha et al. 2019)",
    agents={"ddpg": {
        "bounded": True, "hidden": (64, 64), "activation": "relu", "actor_learning_rate": 1e-4,
        "critic_learning_rate": 1e-3, "critic_weight_decay": 1e-2, "anneal": 0.0, "tau": 0.001,
        "noise": "ou", "noise_std": 0.2,
    }},
    replays={
        "ero": Settings({"hidden": (64, 64), "learning_rate": 1e-4, "batch_size": 64}),
        "uniform": Settings(), "per": Settings(), "rank": Settings(),
    },
    loop={
        **_UNSCALED, "steps": 1_000_000, "warmup": 100, "random_warmup": False,
        "learn_every": 100, "updates": 50, "eval_every": 2_000,
    },
    sizes={"capacity": 1_000_000, "batch_size": 64},
    differs=(
        "Layers are not normalised, and observations not by running statistics, as they are in "
        "the baselines' code.",
        "The critic takes the action at its first layer, there at its second.",
        "The Ornstein-Uhlenbeck process (theta 0.15) moves by whole steps, there by hundredths.",
        "These are that code's settings: whether the paper changed any was not checked.",
    ),
)

# ReF-ER, RACER and their baselines (Novati & Koumoutsakos 2019, App. C and D)

_ANNEAL = 5e-7  # Eq. 10
_REFER_NETWORK: Options = {"hidden": (128, 128), "activation": "softsign"}
_SMALL: Options = {"hidden": (64, 64), "actor_learning_rate": 1e-4, "critic_learning_rate": 3e-4}
_REFER_LOOP: Options = {
    "steps": 10_000_000, "n_step": 1, "gamma": 0.995, "random_warmup": False, "learn_every": 1,
    "updates": 1, "eval_every": 200_000, "scale_observations": True, "scale_rewards": True,
    "rescale_every": 1_000,
}
_REFER: Options = {
    "clip": 4.0, "anneal": _ANNEAL, "target": 0.1, "beta": 0.2, "beta_rate": 1e-4,
    "direction": "behaviour", "forget": "far",
}
_RANK: Options = {  # from the authors' code
    "alpha": 0.5, "beta": 0.5, "normalise": "buffer", "weigh_actor": True,
}
_REFER_DIFFERS = (
    "The paper shows returns of training episodes in windows of 200 thousand steps: see "
    "train_return beside the evaluations.",
    _VERSION,
)
_REFER_PRESETS = {
    "refer_racer": _mujoco(
        "RACER for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, Tab. 1)",
        agents={"racer": {
            **_REFER_NETWORK, "learning_rate": 1e-4, "anneal": _ANNEAL, "advantage": "dg",
            "initial_variance": 0.2,
        }},
        replays={"refer": Settings({**_REFER, "returns": True})},
        loop={**_REFER_LOOP, "warmup": 2**18},
        sizes={"capacity": 2**19, "batch_size": 256},
        differs=_REFER_DIFFERS,
    ),
    "refer_naf": _mujoco(
        "NAF for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, App. D)",
        agents={"naf": {
            **_REFER_NETWORK, "learning_rate": 1e-4, "anneal": 0.0, "tau": 0.01,
            "noise": "gaussian", "noise_std": 0.2,
        }},
        replays={
            "refer": Settings(_REFER, {"anneal": _ANNEAL}),
            "uniform": Settings(),
            "rank": Settings({**_RANK, "beta_end": 1.0, "beta_updates": 2_000_000}),
        },
        loop={**_REFER_LOOP, "warmup": 2**18},
        sizes={"capacity": 2**19, "batch_size": 256},
        differs=(*_REFER_DIFFERS, "The paper shows C of 2, 4 and 8; this is 4."),
    ),
    # With uniform or prioritised replay, the paper's agent is DDPG with bounded actions, correlated
    # noise and constant learning rates. With ReF-ER it is u-DDPG, with unbounded actions, Gaussian
    # noise and annealed learning rates.
    "refer_ddpg": _mujoco(
        "DDPG and u-DDPG for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, App. D)",
        agents={"ddpg": {
            **_REFER_NETWORK, "actor_learning_rate": 1e-5, "critic_learning_rate": 1e-4,
            "critic_weight_decay": 1e-4, "anneal": 0.0, "tau": 0.01, "bounded": True,
            "noise": "ou", "noise_std": 0.2,
        }},
        replays={
            "refer": Settings(_REFER, {"bounded": False, "noise": "gaussian", "anneal": _ANNEAL}),
            "uniform": Settings(),
            "rank": Settings({**_RANK, "beta_end": 0.5, "beta_updates": None}),
        },
        loop={**_REFER_LOOP, "warmup": 2**17},
        sizes={"capacity": 2**19, "batch_size": 128},
        differs=(
            *_REFER_DIFFERS,
            "With refer the agent is u-DDPG (a linear mean, Gaussian noise, annealed), with other "
            "methods DDPG (tanh, Ornstein-Uhlenbeck noise); u-DDPG with plain replay takes "
            "--agent.bounded false.",
            "The paper shows C of 2, 4 and 8; this is 4. Warm-up and rank's options are the "
            "authors' code's.",
        ),
    ),
    "refer_acer": _mujoco(
        "ACER for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, App. D)",
        agents={"acer": {
            **_SMALL, "truncation": 5.0, "trust_region": 1.0, "tau": 0.001, "samples": 5,
            "anneal": 0.0,
        }},
        replays={"windows": Settings({"length": 16})},
        loop={**_REFER_LOOP, "warmup": 1_000},
        sizes={"capacity": 100_000, "batch_size": 24 * 16},
        differs=(
            *_REFER_DIFFERS,
            "A batch is 24 stretches of 16 steps, not 24 whole episodes.",
            "The paper gives no warm-up, and no width of the policy: noise_std is Wang et al.'s.",
        ),
    ),
    "refer_ppo": _mujoco(
        "PPO for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, App. D)",
        agents={"ppo": {
            **_SMALL, "clip": 0.2, "gae": 0.97, "epochs": 10, "minibatch": 64, "anneal": _ANNEAL,
        }},
        replays={"latest": Settings()},
        loop={**_REFER_LOOP, "warmup": 2_048, "learn_every": 2_048},
        sizes={"num_envs": 1, "capacity": 2_048, "batch_size": 2_048},
        differs=(
            *_REFER_DIFFERS,
            "The paper gives no initial width of the policy: initial_variance is RACER's.",
        ),
    ),
}

# TD3+BC (Fujimoto & Gu 2021) and IQL (Kostrikov et al. 2022), for `--demos FILE`

_UNIFORM = {"uniform": Settings()}
_OFFLINE_LOOP: Options = {
    **_LOOP, "steps": 1_000_000, "warmup": 0, "scale_rewards": False,  # one update per step
}
_DATA = "The paper's data are D4RL's; give a file as --demos."
_OFFLINE = {
    "td3_bc": _mujoco(
        "TD3+BC, offline, for MuJoCo, a million updates (Fujimoto & Gu 2021)",
        agents={"td3": {**_AGENTS["td3"], "bc_alpha": 2.5}},
        replays=_UNIFORM,
        loop={**_OFFLINE_LOOP, "scale_observations": True},
        sizes={"batch_size": 256, "demos_share": 1.0},
        differs=(_DATA, "The paper adds 1e-3 to the std that divides observations, here 1e-7."),
    ),
    "iql": _mujoco(
        "IQL, offline, for MuJoCo, a million updates (Kostrikov et al. 2022)",
        agents={"iql": {
            **_TWO_HUNDRED, "value_learning_rate": 3e-4, "tau": 0.005, "expectile": 0.7,
            "temperature": 3.0, "largest_weight": 100.0, "actor_updates": 1_000_000,
        }},
        replays=_UNIFORM,
        loop={**_OFFLINE_LOOP, "scale_observations": False},
        sizes={"batch_size": 256, "demos_share": 1.0},
        differs=(
            _DATA,
            "The paper scales rewards to returns in a range of 1000; scale those of the file.",
        ),
    ),
}

# Successors of SAC, from the papers and the authors' code: REDQ (Chen et al. 2021), DroQ (Hiraoka
# et al. 2022), SR-SAC (D'Oro et al. 2023), RLPD (Ball et al. 2023), CrossQ (Bhatt et al. 2024) and
# SimBa (Lee et al. 2025).

_successor = partial(Preset, replays=_UNIFORM, sizes=_SIZES)
_SAC_LOOP: Options = {
    "n_step": 1, "gamma": 0.99, "warmup": 5_000, "random_warmup": True, "learn_every": 1,
}
_TWENTY: Options = {
    **_SAC_LOOP, "steps": 300_000, "updates": 20, "eval_every": 1_000, "eval_episodes": 1,
}
_SAC: Options = {
    **_TWO_HUNDRED, "alpha_learning_rate": 3e-4, "initial_alpha": 1.0, "target_entropy": -0.5,
    "tau": 0.005,
}
_REDQ: Options = {
    **_SAC, "critics": 10, "target_subset": 2, "actor_reduce": "mean", "policy_delay": 20,
}
_CROSSQ: Options = {
    "hidden": (256, 256), "critic_hidden": (2_048, 2_048), "actor_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3, "alpha_learning_rate": 1e-3, "adam_b1": 0.5,
    "initial_alpha": 1.0, "target_entropy": -1.0, "batch_renorm": True, "renorm_warmup": 100_000,
    "target_network": False, "policy_delay": 3,
}
_TOGETHER = "The actor learns from critics after their step; the paper's code takes those before."
_ENTROPY = "The target entropy is that of Ant, -4; the code has others for other tasks."
_crossq = _successor(
    "CrossQ for MuJoCo, 5 million agent steps (Bhatt et al. 2024)",
    agents={"sac": _CROSSQ},
    loop={
        **_SAC_LOOP, "steps": 5_000_000, "updates": 1, "eval_every": 5_000_000 // 300,
        "eval_episodes": 1,
    },
    env="gymnasium/HumanoidStandup-v5",
    differs=(
        _VERSION,
        "Networks are initialised as in Torch, and the shift of batch renormalisation is exact.",
    ),
)
_SUCCESSORS = {
    "redq": _successor(
        "REDQ for MuJoCo, 300 thousand agent steps, 20 updates each (Chen et al. 2021)",
        agents={"sac": {**_REDQ, "alpha_loss": "log_alpha"}},
        loop=_TWENTY,
        env="gymnasium/Ant-v5",
        differs=(_VERSION, _ENTROPY, _TOGETHER),
    ),
    "droq": _successor(
        "DroQ for MuJoCo, 300 thousand agent steps, 20 updates each (Hiraoka et al. 2022)",
        agents={"sac": {
            **_REDQ, "critics": 2, "target_subset": None, "layer_norm": True, "dropout": 0.01,
            "alpha_loss": "log_alpha",
        }},
        loop=_TWENTY,
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
    "sr_sac": _successor(
        "SR-SAC for the Control Suite, 500 thousand steps, 32 updates each (D'Oro et al. 2023)",
        agents={"sac": {**_SAC, "reset_every": 2_560_000}},
        loop={
            **_SAC_LOOP, "steps": 500_000, "warmup": 10_000, "updates": 32, "eval_every": 5_000,
            "eval_episodes": 10,
        },
        env="playground/CheetahRun",
        differs=(
            "Each reset draws other parameters; the authors' code returns to the first ones.",
        ),
    ),
    "simba": _successor(
        "SAC with SimBa's networks for the Control Suite, 500 thousand steps (Lee et al. 2025)",
        agents={"sac": {
            "network": "residual", "hidden": (128,), "critic_hidden": (512, 512), "critics": 1,
            "actor_learning_rate": 1e-4, "critic_learning_rate": 1e-4,
            "alpha_learning_rate": 1e-4, "weight_decay": 0.01, "initial_alpha": 0.01,
            "target_entropy": -0.5, "tau": 0.005,
        }},
        loop={
            **_SAC_LOOP, "steps": 500_000, "updates": 2, "eval_every": 25_000,
            "eval_episodes": 10, "scale_observations": True,
        },
        env="playground/HumanoidWalk",
        differs=(
            "Observations are standardised by statistics of the warm-up, not by running ones.",
            "Actions are not repeated; the paper repeats each once.",
            "Networks are initialised as in Torch, not orthogonally.",
            "One critic is for tasks that never terminate: others take --agent.critics 2.",
        ),
    ),
    "rlpd": _successor(
        "RLPD for MuJoCo, 250 thousand agent steps, 20 updates each (Ball et al. 2023)",
        agents={"sac": {**_REDQ, "layer_norm": True}},
        loop={**_TWENTY, "steps": 250_000, "eval_every": 5_000, "eval_episodes": 10},
        sizes={"capacity": 250_000, "batch_size": 256, "demos_share": 0.5},
        env=_CHEETAH,
        differs=(
            _VERSION,
            "It needs --demos FILE, such as a replay that another run saved.",
            "Losses are sums over critics, not means, which Adam makes nearly equal.",
        ),
    ),
}
# fmt: on

PRESETS: Mapping[str, Preset] = {
    **_LAP,
    "ners_td3": _ners("td3"),
    "ners_sac": _ners("sac"),
    "ero": _ERO,
    **_REFER_PRESETS,
    **_OFFLINE,
    **_SUCCESSORS,
}
