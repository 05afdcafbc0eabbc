"""The settings of prioritised sequence experience replay for Atari (Brittain et al. 2019)."""

from collections.abc import Mapping

from experiments.runs.presets.preset import Preset, Settings

PRESETS: Mapping[str, Preset] = {
    # App. Tab. 1 to 4, and the authors' configurations. Dopamine's periods are in agent steps.
    "pser": Preset(
        "DQN for Atari, 200 million frames, the authors' code (Brittain et al. 2019)",
        agents={
            "dqn": {
                "double": False,
                "dueling": False,
                "munchausen": False,
                "network": "nature",
                "optimiser": "rmsprop",
                "learning_rate": 2.5e-4,
                "rmsprop_decay": 0.95,
                "rmsprop_eps": 1e-5,
                "rmsprop_eps_in_root": True,
                "max_grad_norm": 0.0,
                "target_every": 2_500,  # 10 000 agent steps
                "tau": 1.0,
                "epsilon_start": 1.0,
                "epsilon_end": 0.01,
                "epsilon_updates": 250_000,  # a million agent steps
            }
        },
        replays={
            "pser": Settings(
                {
                    "alpha": 0.5,
                    "beta": 0.5,
                    "rho": 0.4,
                    "window": 5,
                    "eta": 0.7,
                    "combine": "max",
                    "initial": "max",
                    "decay_on_add": False,
                    "decay_space": "leaf",
                    "leaf": "sqrt_huber",
                }
            ),
            "per": Settings({"alpha": 0.5, "beta": 0.5, "beta_end": 0.5, "epsilon": 1e-10}),
            "uniform": Settings(),
        },
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
            "eval_epsilon": 0.001,
        },
        sizes={"capacity": 1_000_000, "batch_size": 32},
        environment={"protocol": "pser"},
        env="atari/Breakout",
        differs=(
            "Leaves and their decay are the code's; the text's are decay_space raw, leaf power.",
            "The code's PER takes the root of the Huber loss as leaf too: that is a pser with rho "
            "1e-9, window 1 and eta 0.",
            "Evaluations are 10 whole games every million frames, not 500 thousand frames.",
            "The code learns no bootstrapped value where a game is cut off, and its RMSProp starts "
            "from a mean square of 1.",
        ),
    ),
}
