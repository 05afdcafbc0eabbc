"""Every preset against its paper's table, written down here as data.

Numbers are transcribed from the papers and, where a comment says so, from the authors' code. They
are in the units of the options (agent steps, updates), worked out where the paper has others.
"""

import pytest

from experiments.runs.presets import PRESETS
from experiments.runs.registry import AGENTS
from experiments.runs.run_config import SECTIONS, defaults

ENVIRONMENTS = {"discrete": "atari/Breakout", "continuous": "gymnax/Pendulum-v1"}
FRAMES = 4  # per agent step

# Hessel et al. 2018, Tab. 1; evaluations of Sec. "Experimental Methods".
CANONICAL = {
    "loop.steps": 200_000_000 // FRAMES,
    "loop.warmup": 80_000 // FRAMES,  # "Min history to start learning", frames
    "loop.random_warmup": False,  # noisy nets explore, epsilon is 0
    "loop.n_step": 3,
    "loop.gamma": 0.99,
    "loop.learn_every": 4,
    "loop.updates": 1,
    "loop.eval_every": 1_000_000 // FRAMES,
    "loop.eval_episodes": 10,  # instead of 500 thousand frames
    "loop.eval_epsilon": 0.001,
    "sizes.capacity": 1_000_000,
    "sizes.batch_size": 32,
    "agent_options.double": True,
    "agent_options.dueling": True,
    "agent_options.noisy": True,
    "agent_options.sigma": 0.5,
    "agent_options.atoms": 51,
    "agent_options.v_min": -10.0,
    "agent_options.v_max": 10.0,
    "agent_options.priority": "kl",
    "agent_options.network": "nature",
    "agent_options.optimiser": "adam",
    "agent_options.learning_rate": 0.0000625,
    "agent_options.adam_eps": 1.5e-4,
    "agent_options.max_grad_norm": 0.0,
    "agent_options.target_every": 32_000 // FRAMES // 4,  # frames, in updates
    "replay_options.alpha": 0.5,
    "replay_options.beta": 0.4,
    "replay_options.beta_end": 1.0,
    "env_options.protocol": "per",
}
# The code of Oh et al. 2021 (main.py's defaults and run.sh), after van Hasselt et al. 2019.
DATA_EFFICIENT = {
    **CANONICAL,
    "loop.steps": 100_000,
    "loop.warmup": 1_600,
    "loop.n_step": 20,
    "loop.learn_every": 1,
    "loop.eval_every": 1_000,
    "loop.eval_episodes": 5,
    "sizes.capacity": 100_000,
    "agent_options.sigma": 0.1,
    "agent_options.priority": "cross_entropy",
    "agent_options.network": "data_efficient",
    "agent_options.learning_rate": 0.0001,
    "agent_options.max_grad_norm": 10.0,
    "agent_options.target_every": 2_000,
    "env_options.protocol": "ners",
}
# The sampler of the same code: memory.py, class NERS.
NERS_CODE = {
    "replay_options.reward": "evaluation",
    "replay_options.gradient": "none",  # -mean(reward * log(score))
    "replay_options.time_feature": "episode",
    "replay_options.squash": True,
    "replay_options.hidden": (128, 256, 128, 64),
    "replay_options.score_hidden": (128, 64),
    "replay_options.learning_rate": 0.0001,
    "replay_options.train_size": 32,
    "replay_options.normalise": "batch",
}
# Schaul et al. 2016, Tab. 3 and 5, Sec. 4; "as Double DQN (tuned)": DQN Zoo, prioritized/run_atari.
PER = {
    "loop.steps": 200_000_000 // FRAMES,
    "loop.warmup": 50_000,  # 5 % of the capacity
    "loop.random_warmup": True,
    "loop.n_step": 1,
    "loop.gamma": 0.99,
    "loop.learn_every": 4,  # "one minibatch update for each 4 new transitions"
    "loop.updates": 1,
    "loop.eval_every": 1_000_000 // FRAMES,
    "loop.eval_episodes": 10,  # instead of 500 thousand frames
    "loop.eval_epsilon": 0.01,
    "sizes.capacity": 1_000_000,
    "sizes.batch_size": 32,
    "agent_options.double": True,
    "agent_options.dueling": False,
    "agent_options.munchausen": False,
    "agent_options.network": "nature",
    "agent_options.optimiser": "rmsprop",
    "agent_options.learning_rate": 0.00025 / 4,
    "agent_options.rmsprop_decay": 0.95,
    "agent_options.rmsprop_eps": 6.103515625e-07,  # (0.01 / 32^2) / 4^2
    "agent_options.rmsprop_eps_in_root": True,
    "agent_options.max_grad_norm": 0.0,
    "agent_options.target_every": 120_000 // FRAMES // 4,
    "agent_options.tau": 1.0,
    "agent_options.epsilon_start": 1.0,
    "agent_options.epsilon_end": 0.01,
    "agent_options.epsilon_updates": 4_000_000 // FRAMES // 4,  # 2 % of 200 million frames
    "env_options.protocol": "per",
}
PER_ARMS = {
    "per": {
        "replay_options.alpha": 0.6,
        "replay_options.beta": 0.4,
        "replay_options.beta_end": 1.0,
        "replay_options.clip": 1.0,  # TD errors are clipped (Sec. 4 and 5)
        "replay_options.normalise": "batch",
    },
    "rank": {
        "replay_options.alpha": 0.7,
        "replay_options.beta": 0.5,
        "replay_options.beta_end": 1.0,
        "replay_options.normalise": "batch",
    },
    "uniform": {  # the baseline's column
        "agent_options.learning_rate": 0.00025,
        "agent_options.rmsprop_eps": 9.765625e-06,
    },
}
# Fujimoto et al. 2020, Tab. 6; steps, capacity and independent draws: the authors' code.
MUJOCO = {
    "loop.steps": 3_000_000,
    "loop.warmup": 25_000,
    "loop.random_warmup": True,
    "loop.n_step": 1,
    "loop.gamma": 0.99,
    "loop.learn_every": 1,
    "loop.updates": 1,
    "loop.eval_every": 5_000,
    "loop.eval_episodes": 10,
    "loop.scale_observations": False,
    "loop.scale_rewards": False,
    "sizes.capacity": 1_000_000,
    "sizes.batch_size": 256,
    "agent_options.hidden": (256, 256),
    "agent_options.actor_learning_rate": 3e-4,
    "agent_options.critic_learning_rate": 3e-4,
    "agent_options.tau": 0.005,
}
TD3 = {
    "agent_options.exploration_noise": 0.1,
    "agent_options.target_noise": 0.2,
    "agent_options.target_noise_clip": 0.5,
    "agent_options.policy_delay": 2,
}
SAC = {
    "agent_options.alpha_learning_rate": 3e-4,
    "agent_options.target_entropy": -1.0,  # times the dimensions of the action
}
LAP_PER = {
    "replay_options.alpha": 0.6,
    "replay_options.beta": 0.4,
    "replay_options.beta_end": 1.0,  # code
    "replay_options.epsilon": 1e-10,
    "replay_options.sampling": "iid",
}
MUJOCO_ARMS = {
    "uniform": {},
    "per": LAP_PER,
    "lap": {
        "replay_options.alpha": 0.4,
        "replay_options.kappa": 1.0,
        "replay_options.sampling": "iid",
    },
    "pal": {"replay_options.alpha": 0.4, "replay_options.kappa": 1.0},
}
# Fujimoto et al. 2020, Tab. 7 and App. D.2.
ATARI = {
    "loop.steps": 50_000_000,  # code
    "loop.warmup": 20_000,
    "loop.random_warmup": True,
    "loop.n_step": 1,
    "loop.gamma": 0.99,
    "loop.learn_every": 4,
    "loop.updates": 1,
    "loop.eval_every": 50_000,
    "loop.eval_episodes": 10,
    "loop.eval_epsilon": 0.001,
    "sizes.capacity": 1_000_000,  # code
    "sizes.batch_size": 32,
    "agent_options.double": True,
    "agent_options.dueling": False,
    "agent_options.munchausen": False,
    "agent_options.network": "nature",
    "agent_options.optimiser": "rmsprop",  # centred, momentum 0
    "agent_options.learning_rate": 6.25e-5,
    "agent_options.rmsprop_decay": 0.95,
    "agent_options.rmsprop_eps": 1e-5,
    "agent_options.rmsprop_eps_in_root": False,  # Torch
    "agent_options.max_grad_norm": 0.0,
    "agent_options.target_every": 8_000,  # training iterations
    "agent_options.tau": 1.0,
    "agent_options.epsilon_start": 1.0,
    "agent_options.epsilon_end": 0.01,
    "agent_options.epsilon_updates": 250_000,  # training iterations
    "env_options.protocol": "lap",
}
ATARI_ARMS = {
    "uniform": {},
    "per": LAP_PER,
    "lap": {
        "replay_options.alpha": 0.6,
        "replay_options.kappa": 0.01,
        "replay_options.sampling": "iid",
    },
    "pal": {"replay_options.alpha": 0.6, "replay_options.kappa": 0.01},
}
# Brittain et al. 2019, App. Tab. 2 to 4, and the authors' configurations (agent steps).
PSER = {
    "loop.steps": 200 * 250_000,
    "loop.warmup": 50_000,
    "loop.random_warmup": True,
    "loop.n_step": 1,
    "loop.gamma": 0.99,
    "loop.learn_every": 4,
    "loop.updates": 1,
    "loop.eval_every": 250_000,
    "loop.eval_episodes": 10,  # instead of 125 000 agent steps
    "loop.eval_epsilon": 0.001,
    "sizes.capacity": 1_000_000,
    "sizes.batch_size": 32,
    "agent_options.double": False,
    "agent_options.dueling": False,
    "agent_options.munchausen": False,
    "agent_options.network": "nature",
    "agent_options.optimiser": "rmsprop",
    "agent_options.learning_rate": 0.00025,
    "agent_options.rmsprop_decay": 0.95,
    "agent_options.rmsprop_eps": 1e-5,
    "agent_options.rmsprop_eps_in_root": True,  # TensorFlow
    "agent_options.max_grad_norm": 0.0,
    "agent_options.target_every": 10_000 // 4,
    "agent_options.tau": 1.0,
    "agent_options.epsilon_start": 1.0,
    "agent_options.epsilon_end": 0.01,
    "agent_options.epsilon_updates": 1_000_000 // 4,
    "env_options.protocol": "pser",
}
PSER_ARMS = {
    "uniform": {},
    "per": {
        "replay_options.alpha": 0.5,
        "replay_options.beta": 0.5,
        "replay_options.beta_end": 0.5,
        "replay_options.epsilon": 1e-10,
    },
    "pser": {
        "replay_options.alpha": 0.5,
        "replay_options.beta": 0.5,
        "replay_options.rho": 0.4,
        "replay_options.window": 5,
        "replay_options.eta": 0.7,
        "replay_options.combine": "max",
        "replay_options.initial": "max",
        "replay_options.decay_on_add": False,
        "replay_options.decay_space": "leaf",  # code
        "replay_options.leaf": "sqrt_huber",  # code
    },
}
# Oh et al. 2021 print steps alone (Sec. 3.1); the agents are those of Fujimoto et al. 2020, alpha
# and beta PER's, evaluations and networks the authors' code for Atari.
NERS = {**MUJOCO, "loop.steps": 500_000, "loop.eval_every": 1_000, "loop.eval_episodes": 5}
NERS_PER = {
    "replay_options.alpha": 0.6,
    "replay_options.beta": 0.4,
    "replay_options.beta_end": 1.0,
}
NERS_ARMS = {
    "uniform": {},
    "ero": {},
    "per": NERS_PER,
    "ners": {
        **NERS_CODE,
        **NERS_PER,
        "replay_options.gradient": "buffer",  # Eq. 1 in Eq. 7
        "replay_options.time_feature": "run",
        "replay_options.squash": False,
        "replay_options.train_size": 256,
        "replay_options.weigh_actor": True,  # Alg. 1
    },
}
# OpenAI's baselines (ddpg/main.py and models.py), on which the code of Zha et al. 2019 builds.
ERO = {
    "loop.steps": 500 * 20 * 100,  # epochs, cycles, roll-out steps
    "loop.warmup": 100,
    "loop.random_warmup": False,
    "loop.n_step": 1,
    "loop.gamma": 0.99,
    "loop.learn_every": 100,
    "loop.updates": 50,
    "loop.eval_every": 20 * 100,
    "loop.eval_episodes": 10,
    "loop.scale_observations": False,
    "loop.scale_rewards": False,
    "sizes.capacity": 1_000_000,
    "sizes.batch_size": 64,
    "agent_options.bounded": True,
    "agent_options.hidden": (64, 64),
    "agent_options.activation": "relu",
    "agent_options.actor_learning_rate": 1e-4,
    "agent_options.critic_learning_rate": 1e-3,
    "agent_options.critic_weight_decay": 1e-2,
    "agent_options.anneal": 0.0,
    "agent_options.tau": 0.001,
    "agent_options.noise": "ou",  # theta 0.15
    "agent_options.noise_std": 0.2,
}
ERO_ARMS = {
    "uniform": {},
    "per": {},
    "rank": {},
    "ero": {
        "replay_options.hidden": (64, 64),
        "replay_options.learning_rate": 1e-4,
        "replay_options.batch_size": 64,
    },
}
# Novati & Koumoutsakos 2019, App. C and D, Tab. 1 (of RACER).
RACER = {
    "loop.steps": 10_000_000,
    "loop.warmup": 262_144,
    "loop.random_warmup": False,
    "loop.n_step": 1,
    "loop.gamma": 0.995,
    "loop.learn_every": 1,
    "loop.updates": 1,
    "loop.eval_every": 200_000,  # windows of training returns
    "loop.scale_observations": True,
    "loop.scale_rewards": True,
    "loop.rescale_every": 1_000,
    "sizes.capacity": 524_288,
    "sizes.batch_size": 256,
    "agent_options.hidden": (128, 128),
    "agent_options.activation": "softsign",
    "agent_options.learning_rate": 1e-4,
    "agent_options.anneal": 5e-7,
    "agent_options.advantage": "dg",
    "agent_options.initial_variance": 0.2,
}
REFER = {
    "replay_options.clip": 4.0,  # C
    "replay_options.anneal": 5e-7,
    "replay_options.target": 0.1,  # D
    "replay_options.beta": 0.2,  # code
    "replay_options.beta_rate": 1e-4,
    "replay_options.direction": "behaviour",
    "replay_options.forget": "far",
}
PER_OF_REFER = {  # code: P ~ rank^-1/2, weights by the largest of the whole memory, actor included
    "replay_options.alpha": 0.5,
    "replay_options.beta": 0.5,
    "replay_options.normalise": "buffer",
    "replay_options.weigh_actor": True,
}
NAF = {key: value for key, value in RACER.items() if not key.startswith("agent_options")} | {
    "agent_options.hidden": (128, 128),
    "agent_options.activation": "softsign",
    "agent_options.learning_rate": 1e-4,
    "agent_options.anneal": 0.0,
    "agent_options.tau": 0.01,
    "agent_options.noise": "gaussian",
    "agent_options.noise_std": 0.2,
}
NAF_ARMS = {
    "refer": {**REFER, "agent_options.anneal": 5e-7},
    "uniform": {},
    "rank": {
        **PER_OF_REFER,
        "replay_options.beta_end": 1.0,
        "replay_options.beta_updates": 2_000_000,  # 5e-7 per gradient step
    },
}
DDPG = {key: value for key, value in NAF.items() if key != "agent_options.learning_rate"} | {
    "loop.warmup": 131_072,
    "sizes.batch_size": 128,
    "agent_options.actor_learning_rate": 1e-5,
    "agent_options.critic_learning_rate": 1e-4,
    "agent_options.critic_weight_decay": 1e-4,
    "agent_options.bounded": True,
    "agent_options.noise": "ou",  # "when performing regular ER or PER"
}
DDPG_ARMS = {
    "refer": {
        **REFER,
        "agent_options.bounded": False,  # u-DDPG
        "agent_options.noise": "gaussian",
        "agent_options.anneal": 5e-7,
    },
    "uniform": {},
    "rank": {
        **PER_OF_REFER,
        "replay_options.beta_end": 0.5,
        "replay_options.beta_updates": None,
    },
}
BASELINE = {
    **{key: value for key, value in RACER.items() if key.startswith("loop.")},
    "agent_options.hidden": (64, 64),
    "agent_options.actor_learning_rate": 1e-4,
    "agent_options.critic_learning_rate": 3e-4,
}
ACER = {
    **BASELINE,
    "loop.warmup": 1_000,
    "sizes.capacity": 100_000,
    "sizes.batch_size": 24 * 16,
    "agent_options.anneal": 0.0,
    "agent_options.truncation": 5.0,
    "agent_options.trust_region": 1.0,
    "agent_options.tau": 0.001,
    "agent_options.samples": 5,
    "replay_options.length": 16,
}
PPO = {
    **BASELINE,
    "loop.warmup": 2_048,
    "loop.learn_every": 2_048,
    "sizes.num_envs": 1,
    "sizes.capacity": 2_048,
    "sizes.batch_size": 2_048,
    "agent_options.anneal": 5e-7,
    "agent_options.clip": 0.2,
    "agent_options.gae": 0.97,
    "agent_options.epochs": 10,
    "agent_options.minibatch": 64,
}


def without_replay(table):
    return {key: value for key, value in table.items() if not key.startswith("replay_options")}


def arms(agent, base, of_methods):
    """Return the tables of an agent with several methods."""
    return {(agent, name): {**base, **own} for name, own in of_methods.items()}


WITHOUT_PRIORITIES = without_replay(DATA_EFFICIENT)
# Preset -> (agent, replay method) -> option -> value.
TABLES = {
    "canonical": {
        ("rainbow", "per"): CANONICAL,
        ("rainbow", "uniform"): without_replay(CANONICAL),
    },
    "data_efficient": {
        ("rainbow", "per"): DATA_EFFICIENT,
        ("rainbow", "uniform"): WITHOUT_PRIORITIES,
    },
    "per_proportional": arms("dqn", PER, PER_ARMS),
    "per_rank": arms("dqn", PER, PER_ARMS),
    "lap_mujoco": {
        **arms("td3", MUJOCO | TD3, MUJOCO_ARMS),
        **arms("sac", MUJOCO | SAC, MUJOCO_ARMS),
    },
    "lap_atari": arms("dqn", ATARI, ATARI_ARMS),
    "pser": arms("dqn", PSER, PSER_ARMS),
    "ners_td3": arms("td3", NERS | TD3, NERS_ARMS),
    "ners_sac": arms("sac", NERS | SAC, NERS_ARMS),
    "ners_rainbow": {
        ("rainbow", "ners"): DATA_EFFICIENT | NERS_CODE,
        ("rainbow", "per"): DATA_EFFICIENT,
        ("rainbow", "uniform"): WITHOUT_PRIORITIES,
        ("rainbow", "ero"): WITHOUT_PRIORITIES,
    },
    "ero": arms("ddpg", ERO, ERO_ARMS),
    "refer_racer": {
        ("racer", "refer"): {**RACER, **REFER, "replay_options.returns": True},
    },
    "refer_naf": arms("naf", NAF, NAF_ARMS),
    "refer_ddpg": arms("ddpg", DDPG, DDPG_ARMS),
    "refer_acer": {("acer", "windows"): ACER},
    "refer_ppo": {("ppo", "latest"): PPO},
}
CASES = [(name, *names) for name, tables in TABLES.items() for names in tables]


def found(preset, agent, replay):
    """Return all options of a run by name, with a preset or, if that is None, without."""
    config = defaults(ENVIRONMENTS[AGENTS[agent].actions], agent, replay, preset)
    return {
        f"{section}.{option}": value
        for section in SECTIONS
        for option, value in vars(getattr(config, section)).items()
    }


@pytest.mark.parametrize(("name", "agent", "replay"), CASES)
def test_a_preset_is_its_paper_s_table(name, agent, replay):
    options, table = found(name, agent, replay), TABLES[name][agent, replay]
    assert {key: options[key] for key in table} == table
    assert all(type(options[key]) is type(value) for key, value in table.items())
    plain = found(None, agent, replay)
    # Nothing is set that no table vouches for.
    assert {key for key, value in options.items() if value != plain[key]} <= set(table)


def test_every_preset_and_every_arm_has_a_table():
    assert {
        (name, agent, replay)
        for name, preset in PRESETS.items()
        for agent in preset.agents
        for replay in preset.replays
    } == set(CASES)


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_sets_is_in_the_tables_of_its_arms(name):
    """Also where the value happens to be the default."""
    preset = PRESETS[name]
    for (agent, replay), table in TABLES[name].items():
        arm = preset.replays[replay]
        sections = {
            "loop": preset.loop,
            "sizes": preset.sizes,
            "agent_options": {**preset.agents[agent], **arm.agent},
            "replay_options": arm.replay,
        }
        for section, options in sections.items():
            assert {f"{section}.{option}" for option in options} <= set(table)
