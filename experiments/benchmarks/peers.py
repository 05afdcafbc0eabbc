"""Training loops of other projects: rejax (keraJLi/rejax) and purejaxrl (luchris429/purejaxrl).

Their code is used as published, with the hyperparameters of a run of ours. A loop is a function of
a seed's key that trains for a fixed number of steps.
"""

import functools
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.benchmarks import timing
from experiments.runs.run_config import RunConfig
from jaxreplay.types import Array

PUREJAXRL_DQN = "purejaxrl/dqn.py"  # in a clone
# (number of steps, number of these steps before learning) -> the function that trains a seed.
MakeTrain = Callable[[int, int], Callable[[Array], Any]]


def loop(make: MakeTrain, config: RunConfig, steps: int) -> timing.Run:
    """Compile a loop as its project documents it: vmapped over seeds, then jitted.

    The time of a run that ends before learning begins is subtracted from the time of each run.

    Args:
      make: function that makes the loop.
      config: our run with the same hyperparameters.
      steps: learning steps of a call; TD3's actor learns in every other step.
    """
    keys = jax.random.split(jax.random.PRNGKey(0), config.seeds)
    before, steps = config.sizes.batch_size, steps + steps % 2
    short, long = (
        jax.jit(jax.vmap(make(length, before))).lower(keys).compile()
        for length in (before, before + steps)
    )

    def run(count: int) -> float:
        calls = max(1, round(count / steps))
        spent = sum(
            timing.seconds_of(long, keys)[0] - timing.seconds_of(short, keys)[0]
            for _ in range(calls)
        )
        return max(spent, 1e-9) * count / (calls * steps)

    return run


def rejax_train(config: RunConfig) -> MakeTrain:
    """Return rejax's training loop of the agent that `config` names, without evaluations.

    Its replay draws batches without replacement, by sorting a random number per slot.
    """
    import gymnax  # both packages are optional
    import rejax

    env, params = gymnax.make(config.env.removeprefix("gymnax/"))
    options, sizes = config.agent_options, config.sizes
    rate = getattr(options, "learning_rate", None) or options.critic_learning_rate
    relu = {"activation": "relu"}
    networks: dict[str, Any] = {
        "dqn": {"agent_kwargs": dict(relu), "ddqn": False},
        "td3": {"actor_kwargs": dict(relu), "critic_kwargs": dict(relu)},
        "sac": {"agent_kwargs": dict(relu), "hidden_layer_sizes": options.hidden},
    }[config.agent]

    def make(steps: int, before: int) -> Callable[[Array], Any]:
        algorithm = rejax.get_algo(config.agent).create(
            env=SingleDone(env), env_params=params, num_envs=1, total_timesteps=steps, gamma=0.99,
            eval_freq=steps, skip_initial_evaluation=True, fill_buffer=before,
            buffer_size=sizes.capacity, batch_size=sizes.batch_size, learning_rate=rate,
            polyak=1 - options.tau, target_update_freq=1, **networks,
        )  # fmt: skip
        sized = {
            name: getattr(algorithm, name).clone(hidden_layer_sizes=options.hidden)
            for name in ("agent", "actor", "critic")
            if hasattr(algorithm, name)
        }
        return algorithm.replace(eval_callback=lambda *_: (), **sized).train

    return make


def purejaxrl_train(folder: Path, config: RunConfig) -> MakeTrain:
    """Return the loop of purejaxrl's DQN, with our sizes of layers.

    All keys except the key of the first reset derive from one constant, so that all seeds draw the
    same slots and random actions, and each key is hashed once for all seeds.
    """
    spec = importlib.util.spec_from_file_location("purejaxrl_dqn", folder / PUREJAXRL_DQN)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, wandb=types.ModuleType("wandb")):  # imported, not used
        spec.loader.exec_module(module)
    options, sizes = config.agent_options, config.sizes
    wrapper = module.LogWrapper
    replaced = {
        "QNetwork": functools.partial(_QNetwork, options.hidden),
        "LogWrapper": lambda env: SingleDone(wrapper(env)),
    }

    def make(steps: int, before: int) -> Callable[[Array], Any]:
        settings = {
            "ENV_NAME": config.env.removeprefix("gymnax/"), "NUM_ENVS": 1, "GAMMA": 0.99,
            "BUFFER_SIZE": sizes.capacity, "BUFFER_BATCH_SIZE": sizes.batch_size,
            "EPSILON_START": 1.0, "EPSILON_FINISH": 0.05, "EPSILON_ANNEAL_TIME": 10_000,
            "LEARNING_STARTS": before, "TRAINING_INTERVAL": 1, "TOTAL_TIMESTEPS": steps,
            "LR": options.learning_rate, "TARGET_UPDATE_INTERVAL": 1, "TAU": options.tau,
        }  # fmt: skip

        def train(key: Array) -> Any:
            older = mock.patch.object(jax, "tree_map", jax.tree.map, create=True)
            with older, mock.patch.multiple(module, **replaced):  # while the loop is traced
                return module.make_train(settings)(key)

        return train

    return make


class _QNetwork(nn.Module):
    """A Q network for purejaxrl with our sizes of layers, for which it has no option."""

    hidden: tuple[int, ...]
    action_dim: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for size in self.hidden:
            x = nn.relu(nn.Dense(size)(x))
        return nn.Dense(self.action_dim)(x)


class SingleDone:
    """A gymnax environment whose steps return one `done` flag, as before gymnax 1.0."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_env":  # looked up by copies before `_env` is set
            raise AttributeError(name)
        return getattr(self._env, name)

    def step(self, key: Array, state: Any, action: Any, params: Any = None) -> tuple:
        obs, state, reward, *ends, info = self._env.step(key, state, action, params)
        return obs, state, reward, jnp.any(jnp.stack(ends), axis=0), info
