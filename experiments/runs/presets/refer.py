"""The settings of ReF-ER, RACER and their baselines (Novati & Koumoutsakos 2019, App. C and D)."""

from collections.abc import Mapping

from experiments.runs.presets.preset import Options, Preset, Settings

_ANNEAL = 5e-7  # Eq. 10
_ENV = "gymnasium/HalfCheetah-v5"
_NETWORK: Options = {"hidden": (128, 128), "activation": "softsign"}
_SMALL: Options = {
    "hidden": (64, 64),
    "actor_learning_rate": 1e-4,
    "critic_learning_rate": 3e-4,
}
_LOOP: Options = {
    "steps": 10_000_000,
    "n_step": 1,
    "gamma": 0.995,
    "random_warmup": False,
    "learn_every": 1,
    "updates": 1,
    "eval_every": 200_000,
    "scale_observations": True,
    "scale_rewards": True,
    "rescale_every": 1_000,
}
_REFER: Options = {
    "clip": 4.0,
    "anneal": _ANNEAL,
    "target": 0.1,
    "beta": 0.2,
    "beta_rate": 1e-4,
    "direction": "behaviour",
    "forget": "far",
}
_DIFFERS = (
    "The paper shows returns of training episodes in windows of 200 thousand steps: see "
    "train_return beside the evaluations.",
    "Old versions of the tasks ran on another MuJoCo: scores differ, their order may not.",
)


def _prioritised(beta_end: float, horizon: int | None) -> Options:
    """Return the rank-based PER of the authors' code."""
    return {
        "alpha": 0.5,
        "beta": 0.5,
        "beta_end": beta_end,
        "beta_updates": horizon,
        "normalise": "buffer",
        "weigh_actor": True,
    }


PRESETS: Mapping[str, Preset] = {
    "refer_racer": Preset(
        "RACER for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, Tab. 1)",
        agents={
            "racer": {
                **_NETWORK,
                "learning_rate": 1e-4,
                "anneal": _ANNEAL,
                "advantage": "dg",
                "initial_variance": 0.2,
            }
        },
        replays={"refer": Settings({**_REFER, "returns": True})},
        loop={**_LOOP, "warmup": 2**18},
        sizes={"capacity": 2**19, "batch_size": 256},
        env=_ENV,
        differs=_DIFFERS,
    ),
    "refer_naf": Preset(
        "NAF for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, App. D)",
        agents={
            "naf": {
                **_NETWORK,
                "learning_rate": 1e-4,
                "anneal": 0.0,
                "tau": 0.01,
                "noise": "gaussian",
                "noise_std": 0.2,
            }
        },
        replays={
            "refer": Settings(_REFER, {"anneal": _ANNEAL}),
            "uniform": Settings(),
            "rank": Settings(_prioritised(1.0, 2_000_000)),
        },
        loop={**_LOOP, "warmup": 2**18},
        sizes={"capacity": 2**19, "batch_size": 256},
        env=_ENV,
        differs=(*_DIFFERS, "The paper shows C of 2, 4 and 8; this is 4."),
    ),
    # With plain or prioritised replay the paper's DDPG is bounded, with correlated noise, and its
    # step sizes stay; with ReF-ER it is u-DDPG, with Gaussian noise, and they are annealed.
    "refer_ddpg": Preset(
        "DDPG and u-DDPG for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, App. D)",
        agents={
            "ddpg": {
                **_NETWORK,
                "actor_learning_rate": 1e-5,
                "critic_learning_rate": 1e-4,
                "critic_weight_decay": 1e-4,
                "anneal": 0.0,
                "tau": 0.01,
                "bounded": True,
                "noise": "ou",
                "noise_std": 0.2,
            }
        },
        replays={
            "refer": Settings(_REFER, {"bounded": False, "noise": "gaussian", "anneal": _ANNEAL}),
            "uniform": Settings(),
            "rank": Settings(_prioritised(0.5, None)),
        },
        loop={**_LOOP, "warmup": 2**17},
        sizes={"capacity": 2**19, "batch_size": 128},
        env=_ENV,
        differs=(
            *_DIFFERS,
            "With refer the agent is u-DDPG (a linear mean, Gaussian noise, annealed), with other "
            "methods DDPG (tanh, Ornstein-Uhlenbeck noise); u-DDPG with plain replay takes "
            "--agent.bounded false.",
            "The paper shows C of 2, 4 and 8; this is 4. Warm-up and rank's options are the "
            "authors' code's.",
        ),
    ),
    "refer_acer": Preset(
        "ACER for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, App. D)",
        agents={
            "acer": {
                **_SMALL,
                "truncation": 5.0,
                "trust_region": 1.0,
                "tau": 0.001,
                "samples": 5,
                "anneal": 0.0,
            }
        },
        replays={"windows": Settings({"length": 16})},
        loop={**_LOOP, "warmup": 1_000},
        sizes={"capacity": 100_000, "batch_size": 24 * 16},
        env=_ENV,
        differs=(
            *_DIFFERS,
            "A batch is 24 stretches of 16 steps, not 24 whole episodes.",
            "The paper gives no warm-up, and no width of the policy: noise_std is Wang et al.'s.",
        ),
    ),
    "refer_ppo": Preset(
        "PPO for MuJoCo, 10 million agent steps (Novati & Koumoutsakos 2019, App. D)",
        agents={
            "ppo": {
                **_SMALL,
                "clip": 0.2,
                "gae": 0.97,
                "epochs": 10,
                "minibatch": 64,
                "anneal": _ANNEAL,
            }
        },
        replays={"latest": Settings()},
        loop={**_LOOP, "warmup": 2_048, "learn_every": 2_048},
        sizes={"num_envs": 1, "capacity": 2_048, "batch_size": 2_048},
        env=_ENV,
        differs=(
            *_DIFFERS,
            "The paper gives no initial width of the policy: initial_variance is RACER's.",
        ),
    ),
}
