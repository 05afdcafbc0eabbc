"""purejaxrl (luchris429): DQN with flashbax's uniform buffer.

As published, all keys except that of the first reset derive from one constant, so that all seeds
draw the same slots and random actions, and each key is hashed once for all seeds. A second variant
has separate keys for each seed. Its learning phase does not return the buffer, so that prioritised
replay cannot be added.
"""

import functools
import importlib.util
import sys
import types
import unittest.mock
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax

from experiments.benchmarks.peer_loops import FILES, SingleDone, Train, Variant
from experiments.runs.run_config import RunConfig
from jaxreplay.types import Array


def variants(folder: Path, config: RunConfig) -> Mapping[str, Variant]:
    """Return the loops with published keys and with keys per seed."""
    if config.agent != "dqn":
        return {}
    module = _load(folder / FILES["purejaxrl"])
    return {
        "purejaxrl": Variant(functools.partial(_train, module, config, False)),
        "purejaxrl, keys per seed": Variant(functools.partial(_train, module, config, True)),
    }


def _load(path: Path) -> Any:
    """Import the file, with an empty `wandb` (not used here) if it is not installed."""
    spec = importlib.util.spec_from_file_location("purejaxrl_dqn", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    absent = importlib.util.find_spec("wandb") is None
    if absent:
        sys.modules["wandb"] = types.ModuleType("wandb")
    try:
        spec.loader.exec_module(module)
    finally:
        if absent:
            del sys.modules["wandb"]
    return module


def _train(module: Any, config: RunConfig, own_keys: bool, steps: int, before: int) -> Train:
    """Return a run of `steps` steps, of which the first `before` do not learn."""
    options, sizes = config.agent_options, config.sizes
    settings = {
        "ENV_NAME": config.env.removeprefix("gymnax/"), "NUM_ENVS": 1, "GAMMA": 0.99,
        "BUFFER_SIZE": sizes.capacity, "BUFFER_BATCH_SIZE": sizes.batch_size,
        "EPSILON_START": 1.0, "EPSILON_FINISH": 0.05, "EPSILON_ANNEAL_TIME": 10_000,
        "LEARNING_STARTS": before, "TRAINING_INTERVAL": 1, "TOTAL_TIMESTEPS": steps,
        "LR": options.learning_rate, "TARGET_UPDATE_INTERVAL": 1, "TAU": options.tau,
    }  # fmt: skip
    network = functools.partial(_QNetwork, options.hidden)
    log_wrapper = module.LogWrapper

    def train(key: Array) -> Any:
        keys = {"PRNGKey": lambda seed: jax.random.fold_in(key, seed)} if own_keys else {}
        older = Overlay(jax, tree_map=jax.tree.map, random=Overlay(jax.random, **keys))
        wrapper = lambda env: SingleDone(log_wrapper(env))  # noqa: E731
        names = {"jax": older, "QNetwork": network, "LogWrapper": wrapper}
        with unittest.mock.patch.multiple(module, **names):  # while it is traced
            return module.make_train(settings)(key)

    return train


class _QNetwork(nn.Module):
    """The Q network; the project has no option for its layers."""

    hidden: tuple[int, ...]
    action_dim: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for size in self.hidden:
            x = nn.relu(nn.Dense(size)(x))
        return nn.Dense(self.action_dim)(x)


class Overlay:
    """A module with additional or replaced attributes."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
