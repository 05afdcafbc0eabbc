"""Presets compared with the tables of their papers, which are transcribed here.

Numbers are transcribed from the papers and the authors' code, and worked out in the units of the
options (agent steps, updates).
"""

import json

import pytest

from experiments.runs.presets import PRESETS
from experiments.runs.registry import AGENTS
from experiments.runs.run_config import PREFIXES, RunConfig, defaults

ENVIRONMENTS = {"discrete": "atari/Breakout", "continuous": "gymnax/Pendulum-v1"}
FRAMES = 4  # per agent step
SIZES = ("capacity", "batch_size")


def without(prefix, table):
    return {key: value for key, value in table.items() if not key.startswith(prefix)}


# fmt: off
# Hessel et al. 2018, Tab. 1; evaluations of Sec. "Experimental Methods".
CANONICAL = {
    "steps": 200_000_000 // FRAMES, "warmup": 80_000 // FRAMES, "random_warmup": False, "n_step": 3,
    "gamma": 0.99, "learn_every": 4, "updates": 1, "eval_every": 1_000_000 // FRAMES,
    "eval_episodes": 10, "eval_epsilon": 0.001, "capacity": 1_000_000, "batch_size": 32,
    "agent.double": True, "agent.dueling": True, "agent.noisy": True, "agent.sigma": 0.5,
    "agent.atoms": 51, "agent.v_min": -10.0, "agent.v_max": 10.0, "agent.priority": "kl",
    "agent.network": "nature", "agent.optimiser": "adam", "agent.learning_rate": 0.0000625,
    "agent.adam_eps": 1.5e-4, "agent.max_grad_norm": 0.0,
    "agent.target_every": 32_000 // FRAMES // 4, "replay.alpha": 0.5, "replay.beta": 0.4,
    "replay.beta_end": 1.0, "env.protocol": "per",
}
# The code of Oh et al. 2021 (main.py's defaults and run.sh), after van Hasselt et al. 2019.
DATA_EFFICIENT = {
    **CANONICAL, "steps": 100_000, "warmup": 1_600, "n_step": 20, "learn_every": 1,
    "eval_every": 1_000, "eval_episodes": 5, "capacity": 100_000, "agent.sigma": 0.1,
    "agent.priority": "cross_entropy", "agent.network": "data_efficient",
    "agent.learning_rate": 0.0001, "agent.max_grad_norm": 10.0, "agent.target_every": 2_000,
    "env.protocol": "ners",
}
# The sampler of the same code: memory.py, class NERS.
NERS_CODE = {
    "replay.reward": "evaluation", "replay.gradient": "none", "replay.time_feature": "episode",
    "replay.squash": True, "replay.hidden": (128, 256, 128, 64), "replay.score_hidden": (128, 64),
    "replay.learning_rate": 0.0001, "replay.train_size": 32, "replay.normalise": "batch",
}
# The settings in which Schaul et al. 2016, Fujimoto et al. 2020 and Brittain et al. 2019 agree.
DQN = {
    "random_warmup": True, "n_step": 1, "gamma": 0.99, "learn_every": 4, "updates": 1,
    "eval_episodes": 10, "capacity": 1_000_000, "batch_size": 32, "agent.dueling": False,
    "agent.munchausen": False, "agent.network": "nature", "agent.optimiser": "rmsprop",
    "agent.rmsprop_decay": 0.95, "agent.max_grad_norm": 0.0, "agent.tau": 1.0,
    "agent.epsilon_start": 1.0, "agent.epsilon_end": 0.01,
}
# Schaul et al. 2016, Tab. 3 and 5, Sec. 4; "as Double DQN (tuned)": DQN Zoo, prioritized/run_atari.
PER = {
    **DQN, "steps": 200_000_000 // FRAMES, "warmup": 50_000, "eval_every": 1_000_000 // FRAMES,
    "eval_epsilon": 0.01, "agent.double": True, "agent.learning_rate": 0.00025 / 4,
    "agent.rmsprop_eps": 6.103515625e-07, "agent.rmsprop_eps_in_root": True,
    "agent.target_every": 120_000 // FRAMES // 4, "agent.epsilon_updates": 4_000_000 // FRAMES // 4,
    "env.protocol": "per",
}
PER_ARMS = {
    "per": {
        "replay.alpha": 0.6, "replay.beta": 0.4, "replay.beta_end": 1.0, "replay.clip": 1.0,
        "replay.normalise": "batch",
    },
    "rank": {
        "replay.alpha": 0.7, "replay.beta": 0.5, "replay.beta_end": 1.0,
        "replay.normalise": "batch",
    }, "uniform": {"agent.learning_rate": 0.00025, "agent.rmsprop_eps": 9.765625e-06},
}
# Fujimoto et al. 2020, Tab. 6; steps, capacity and independent draws: the authors' code.
MUJOCO = {
    "steps": 3_000_000, "warmup": 25_000, "random_warmup": True, "n_step": 1, "gamma": 0.99,
    "learn_every": 1, "updates": 1, "eval_every": 5_000, "eval_episodes": 10,
    "scale_observations": False, "scale_rewards": False, "capacity": 1_000_000, "batch_size": 256,
    "agent.hidden": (256, 256), "agent.actor_learning_rate": 3e-4,
    "agent.critic_learning_rate": 3e-4, "agent.tau": 0.005,
}
TD3 = {
    "agent.exploration_noise": 0.1, "agent.target_noise": 0.2, "agent.target_noise_clip": 0.5,
    "agent.policy_delay": 2,
}
SAC = {"agent.alpha_learning_rate": 3e-4, "agent.target_entropy": -1.0}
# Fujimoto & Gu 2021, Tab. 3, and Kostrikov et al. 2022, App. B, with the code of both.
OFFLINE = {
    "steps": 1_000_000, "n_step": 1, "gamma": 0.99, "warmup": 0, "learn_every": 1, "updates": 1,
    "eval_every": 5_000, "eval_episodes": 10, "scale_rewards": False, "batch_size": 256,
    "demos_share": 1.0, "agent.hidden": (256, 256), "agent.actor_learning_rate": 3e-4,
    "agent.critic_learning_rate": 3e-4, "agent.tau": 0.005,
}
TD3_BC = {**OFFLINE, **TD3, "scale_observations": True, "agent.bc_alpha": 2.5}
IQL = {
    **OFFLINE, "scale_observations": False, "agent.value_learning_rate": 3e-4,
    "agent.expectile": 0.7, "agent.temperature": 3.0, "agent.largest_weight": 100.0,
    "agent.actor_updates": 1_000_000,
}
# Fujimoto et al. 2023, with the authors' code (TD7.py, main.py).
TD7 = {
    **without("agent.tau", MUJOCO | TD3), "steps": 5_000_000, "agent.encoder_learning_rate": 3e-4,
    "agent.embedding": 256, "agent.target_every": 250,
}
LAP_PER = {
    "replay.alpha": 0.6, "replay.beta": 0.4, "replay.beta_end": 1.0, "replay.epsilon": 1e-10,
    "replay.sampling": "iid",
}
MUJOCO_ARMS = {
    "uniform": {}, "per": LAP_PER,
    "lap": {"replay.alpha": 0.4, "replay.kappa": 1.0, "replay.sampling": "iid"},
    "pal": {"replay.alpha": 0.4, "replay.kappa": 1.0},
}
# Fujimoto et al. 2020, Tab. 7 and App. D.2.
ATARI = {
    **DQN, "steps": 50_000_000, "warmup": 20_000, "eval_every": 50_000, "eval_epsilon": 0.001,
    "agent.double": True, "agent.learning_rate": 6.25e-5, "agent.rmsprop_eps": 1e-5,
    "agent.rmsprop_eps_in_root": False, "agent.target_every": 8_000,
    "agent.epsilon_updates": 250_000, "env.protocol": "lap",
}
TD7_ARMS = {"uniform": {}, "lap": {**MUJOCO_ARMS["lap"], "replay.maximum": "stored"}}
ATARI_ARMS = {
    "uniform": {}, "per": LAP_PER,
    "lap": {"replay.alpha": 0.6, "replay.kappa": 0.01, "replay.sampling": "iid"},
    "pal": {"replay.alpha": 0.6, "replay.kappa": 0.01},
}
# Brittain et al. 2019, App. Tab. 2 to 4, and the authors' configurations (agent steps).
PSER = {
    **DQN, "steps": 200 * 250_000, "warmup": 50_000, "eval_every": 250_000, "eval_epsilon": 0.001,
    "agent.double": False, "agent.learning_rate": 0.00025, "agent.rmsprop_eps": 1e-5,
    "agent.rmsprop_eps_in_root": True, "agent.target_every": 10_000 // 4,
    "agent.epsilon_updates": 1_000_000 // 4, "env.protocol": "pser",
}
PSER_ARMS = {
    "uniform": {},
    "per": {
        "replay.alpha": 0.5, "replay.beta": 0.5, "replay.beta_end": 0.5, "replay.epsilon": 1e-10,
    },
    "pser": {
        "replay.alpha": 0.5, "replay.beta": 0.5, "replay.rho": 0.4, "replay.window": 5,
        "replay.eta": 0.7, "replay.combine": "max", "replay.initial": "max",
        "replay.decay_on_add": False, "replay.decay_space": "leaf", "replay.leaf": "sqrt_huber",
    },
}
# Oh et al. 2021 print steps alone (Sec. 3.1); the agents are those of Fujimoto et al. 2020, alpha
# and beta PER's, evaluations and networks the authors' code for Atari.
NERS = {**MUJOCO, "steps": 500_000, "eval_every": 1_000, "eval_episodes": 5}
NERS_PER = {"replay.alpha": 0.6, "replay.beta": 0.4, "replay.beta_end": 1.0}
NERS_ARMS = {
    "uniform": {}, "ero": {}, "per": NERS_PER,
    "ners": {
        **NERS_CODE, **NERS_PER, "replay.gradient": "buffer", "replay.time_feature": "run",
        "replay.squash": False, "replay.train_size": 256, "replay.weigh_actor": True,
    },
}
# OpenAI's baselines (ddpg/main.py and models.py), on which the code of Zha et al. 2019 builds.
ERO = {
    "steps": 500 * 20 * 100, "warmup": 100, "random_warmup": False, "n_step": 1, "gamma": 0.99,
    "learn_every": 100, "updates": 50, "eval_every": 20 * 100, "eval_episodes": 10,
    "scale_observations": False, "scale_rewards": False, "capacity": 1_000_000, "batch_size": 64,
    "agent.bounded": True, "agent.hidden": (64, 64), "agent.activation": "relu",
    "agent.actor_learning_rate": 1e-4, "agent.critic_learning_rate": 1e-3,
    "agent.critic_weight_decay": 1e-2, "agent.anneal": 0.0, "agent.tau": 0.001, "agent.noise": "ou",
    "agent.noise_std": 0.2,
}
ERO_ARMS = {
    "uniform": {}, "per": {}, "rank": {},
    "ero": {"replay.hidden": (64, 64), "replay.learning_rate": 1e-4, "replay.batch_size": 64},
}
# Novati & Koumoutsakos 2019, App. C and D, Tab. 1 (of RACER).
RACER = {
    "steps": 10_000_000, "warmup": 262_144, "random_warmup": False, "n_step": 1, "gamma": 0.995,
    "learn_every": 1, "updates": 1, "eval_every": 200_000, "scale_observations": True,
    "scale_rewards": True, "rescale_every": 1_000, "capacity": 524_288, "batch_size": 256,
    "agent.hidden": (128, 128), "agent.activation": "softsign", "agent.learning_rate": 1e-4,
    "agent.anneal": 5e-7, "agent.advantage": "dg", "agent.initial_variance": 0.2,
}
REFER = {
    "replay.clip": 4.0, "replay.anneal": 5e-7, "replay.target": 0.1, "replay.beta": 0.2,
    "replay.beta_rate": 1e-4, "replay.direction": "behaviour", "replay.forget": "far",
}
PER_OF_REFER = {
    "replay.alpha": 0.5, "replay.beta": 0.5, "replay.normalise": "buffer",
    "replay.weigh_actor": True,
}
NAF = without("agent", RACER) | {
    "agent.hidden": (128, 128), "agent.activation": "softsign", "agent.learning_rate": 1e-4,
    "agent.anneal": 0.0, "agent.tau": 0.01, "agent.noise": "gaussian", "agent.noise_std": 0.2,
}
NAF_ARMS = {
    "refer": {**REFER, "agent.anneal": 5e-7}, "uniform": {},
    "rank": {**PER_OF_REFER, "replay.beta_end": 1.0, "replay.beta_updates": 2_000_000},
}
DDPG = without("agent.learning_rate", NAF) | {
    "warmup": 131_072, "batch_size": 128, "agent.actor_learning_rate": 1e-5,
    "agent.critic_learning_rate": 1e-4, "agent.critic_weight_decay": 1e-4, "agent.bounded": True,
    "agent.noise": "ou",
}
DDPG_ARMS = {
    "refer": {**REFER, "agent.bounded": False, "agent.noise": "gaussian", "agent.anneal": 5e-7},
    "uniform": {}, "rank": {**PER_OF_REFER, "replay.beta_end": 0.5, "replay.beta_updates": None},
}
BASELINE = {
    **{key: value for key, value in without("agent", RACER).items() if key not in SIZES},
    "agent.hidden": (64, 64), "agent.actor_learning_rate": 1e-4, "agent.critic_learning_rate": 3e-4,
}
ACER = {
    **BASELINE, "warmup": 1_000, "capacity": 100_000, "batch_size": 24 * 16, "agent.anneal": 0.0,
    "agent.truncation": 5.0, "agent.trust_region": 1.0, "agent.tau": 0.001, "agent.samples": 5,
    "replay.length": 16,
}
PPO = {
    **BASELINE, "warmup": 2_048, "learn_every": 2_048, "num_envs": 1, "capacity": 2_048,
    "batch_size": 2_048, "agent.anneal": 5e-7, "agent.clip": 0.2, "agent.gae": 0.97,
    "agent.epochs": 10, "agent.minibatch": 64,
}
UNIFORM = without("replay", DATA_EFFICIENT)
# Dabney et al. 2018a and b; where they refer to DQN, flags of dqn_zoo, which are in frames.
QUANTILES = {
    "steps": 200_000_000 // FRAMES, "random_warmup": True, "n_step": 1, "gamma": 0.99,
    "learn_every": 16 // FRAMES, "updates": 1, "eval_every": 1_000_000 // FRAMES,
    "eval_episodes": 10, "eval_epsilon": 0.001, "capacity": 1_000_000, "batch_size": 32,
    "agent.double": False, "agent.dueling": False, "agent.noisy": False, "agent.network": "nature",
    "agent.kappa": 1.0, "agent.optimiser": "adam", "agent.learning_rate": 0.00005,
    "agent.adam_eps": 0.01 / 32, "agent.target_every": 40_000 // 16, "agent.epsilon_start": 1.0,
    "agent.epsilon_end": 0.01, "agent.epsilon_updates": int(0.02 * 200_000_000) // 16,
}
QR_DQN = {
    **QUANTILES, "agent.head": "quantile", "agent.quantiles": 200, "agent.max_grad_norm": 10.0,
    "warmup": 50_000,
}
IQN = {
    **QUANTILES, "agent.head": "implicit", "agent.quantiles": 64, "agent.averaged": 32,
    "agent.embedding": 64, "agent.max_grad_norm": 0.0, "warmup": 20_000,
}
# Chen et al. 2021, Tab. 1, and the authors' code (train_redq_sac.py, core.py): one evaluation per
# epoch of 1 000 steps, the target entropy of Ant (-4) for each of its 8 dimensions of actions.
REDQ = {
    "steps": 300_000, "warmup": 5_000, "random_warmup": True, "n_step": 1, "gamma": 0.99,
    "learn_every": 1, "updates": 20, "eval_every": 1_000, "eval_episodes": 1, "capacity": 1_000_000,
    "batch_size": 256, "agent.hidden": (256, 256), "agent.actor_learning_rate": 3e-4,
    "agent.critic_learning_rate": 3e-4, "agent.alpha_learning_rate": 3e-4,
    "agent.initial_alpha": 1.0, "agent.target_entropy": -4 / 8, "agent.tau": 0.005,
    "agent.critics": 10, "agent.target_subset": 2, "agent.actor_reduce": "mean",
    "agent.policy_delay": 20, "agent.alpha_loss": "log_alpha",
}
# Hiraoka et al. 2022, and the authors' code, which extends REDQ's.
DROQ = {
    **REDQ, "agent.critics": 2, "agent.target_subset": None, "agent.layer_norm": True,
    "agent.dropout": 0.01,
}
# Ball et al. 2023, Tab. 1, and the authors' code for locomotion (README, rlpd_config.py).
RLPD = {
    **without("agent.alpha_loss", REDQ), "steps": 250_000, "eval_every": 5_000, "eval_episodes": 10,
    "capacity": 250_000, "demos_share": 0.5, "agent.layer_norm": True,
}
# Bhatt et al. 2024, Tab. 1, and the authors' code (train.py).
CROSSQ = {
    **{key: value for key, value in REDQ.items() if not key.startswith("agent")},
    "steps": 5_000_000, "updates": 1, "eval_every": 16_666, "agent.hidden": (256, 256),
    "agent.critic_hidden": (2048, 2048), "agent.actor_learning_rate": 1e-3,
    "agent.critic_learning_rate": 1e-3, "agent.alpha_learning_rate": 1e-3, "agent.adam_b1": 0.5,
    "agent.initial_alpha": 1.0, "agent.target_entropy": -1.0, "agent.batch_renorm": True,
    "agent.renorm_warmup": 100_000, "agent.target_network": False, "agent.policy_delay": 3,
}
# D'Oro et al. 2023, and the authors' code (README, train_parallel.py).
SR_SAC = {
    **{key: value for key, value in REDQ.items() if not key.startswith("agent")},
    **{key: REDQ[key] for key in (
        "agent.hidden", "agent.actor_learning_rate", "agent.critic_learning_rate",
        "agent.alpha_learning_rate", "agent.initial_alpha", "agent.tau",
    )},
    "steps": 500_000, "warmup": 10_000, "updates": 32, "eval_every": 5_000, "eval_episodes": 10,
    "agent.target_entropy": -0.5, "agent.reset_every": 2_560_000,
}
# Lee et al. 2025, and the authors' code (sac_simba.yaml, base.yaml, dmc_hard.yaml): 1e6 steps of
# the environment, two for each action.
SIMBA = {
    **{key: value for key, value in REDQ.items() if not key.startswith("agent")},
    "steps": 500_000, "updates": 2, "eval_every": 25_000, "eval_episodes": 10,
    "scale_observations": True, "agent.network": "residual", "agent.hidden": (128,),
    "agent.critic_hidden": (512, 512), "agent.critics": 1, "agent.actor_learning_rate": 1e-4,
    "agent.critic_learning_rate": 1e-4, "agent.alpha_learning_rate": 1e-4,
    "agent.weight_decay": 0.01, "agent.initial_alpha": 0.01, "agent.target_entropy": -0.5,
    "agent.tau": 0.005,
}


def arms(agent, base, of_methods):
    """Return the tables of an agent with several methods."""
    return {(agent, name): {**base, **own} for name, own in of_methods.items()}


# Preset -> (agent, replay method) -> option -> value.
TABLES = {
    "canonical": arms("rainbow", {}, {"per": CANONICAL, "uniform": without("replay", CANONICAL)}),
    "data_efficient": arms("rainbow", {}, {"per": DATA_EFFICIENT, "uniform": UNIFORM}),
    "qr_dqn": {("rainbow", "uniform"): QR_DQN},
    "iqn": {("rainbow", "uniform"): IQN},
    "td3_bc": {("td3", "uniform"): TD3_BC},
    "iql": {("iql", "uniform"): IQL},
    "per_proportional": arms("dqn", PER, PER_ARMS),
    "per_rank": arms("dqn", PER, PER_ARMS),
    "lap_mujoco": arms("td3", MUJOCO | TD3, MUJOCO_ARMS) | arms("sac", MUJOCO | SAC, MUJOCO_ARMS),
    "td7": arms("td7", TD7, TD7_ARMS),
    "lap_atari": arms("dqn", ATARI, ATARI_ARMS),
    "pser": arms("dqn", PSER, PSER_ARMS),
    "ners_td3": arms("td3", NERS | TD3, NERS_ARMS),
    "ners_sac": arms("sac", NERS | SAC, NERS_ARMS),
    "ners_rainbow": arms("rainbow", UNIFORM, {
        "ners": DATA_EFFICIENT | NERS_CODE, "per": DATA_EFFICIENT, "uniform": {}, "ero": {},
    }),
    "ero": arms("ddpg", ERO, ERO_ARMS),
    "refer_racer": {("racer", "refer"): {**RACER, **REFER, "replay.returns": True}},
    "refer_naf": arms("naf", NAF, NAF_ARMS),
    "refer_ddpg": arms("ddpg", DDPG, DDPG_ARMS),
    "refer_acer": {("acer", "windows"): ACER},
    "refer_ppo": {("ppo", "latest"): PPO},
    "redq": {("sac", "uniform"): REDQ},
    "droq": {("sac", "uniform"): DROQ},
    "crossq": {("sac", "uniform"): CROSSQ},
    "crossq_small": {("sac", "uniform"): {**CROSSQ, "agent.critic_hidden": (256, 256)}},
    "sr_sac": {("sac", "uniform"): SR_SAC},
    "simba": {("sac", "uniform"): SIMBA},
    "rlpd": {("sac", "uniform"): RLPD},
}
# fmt: on
CASES = [(name, *names) for name, tables in TABLES.items() for names in tables]


def config_of(preset, agent, replay):
    return defaults(ENVIRONMENTS[AGENTS[agent].actions], agent, replay, preset)


def options_of(config):
    """Return all options of a run by name."""
    return {
        f"{prefix}{option}": value
        for section, prefix in PREFIXES.items()
        for option, value in vars(getattr(config, section)).items()
    }


@pytest.mark.parametrize(("name", "agent", "replay"), CASES)
def test_presets_equal_the_tables_of_their_papers(name, agent, replay):
    config = config_of(name, agent, replay)
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    options, table = options_of(config), TABLES[name][agent, replay]
    assert {key: options[key] for key in table} == table
    assert all(type(options[key]) is type(value) for key, value in table.items())
    # Presets set only options listed in a table, even if the value equals the default.
    plain, preset = options_of(config_of(None, agent, replay)), PRESETS[name]
    given = {
        "": {**preset.loop, **preset.sizes},
        "agent.": {**preset.agents[agent], **preset.agent_with.get(replay, {})},
        "replay.": preset.replays[replay],
    }
    names = {f"{prefix}{option}" for prefix, options in given.items() for option in options}
    assert names | {key for key, value in options.items() if value != plain[key]} <= set(table)


def test_every_preset_and_every_arm_has_a_table():
    assert {
        (name, agent, replay)
        for name, preset in PRESETS.items()
        for agent in preset.agents
        for replay in preset.replays
    } == set(CASES)
