"""One run: from its configuration to a folder of results, resumable at any log point."""

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from experiments import checkpoint, environments, log, registry, report, statistics
from experiments.config import EnvironmentConfig, LoopConfig, ReplaySizes
from experiments.loop import Program, make_program
from experiments.config import schedule
from experiments.sweep import make_sweep
from jaxreplay.methods import METHODS
from jaxreplay.replay import make_replay

LOGGERS = ("tensorboard", "wandb")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's numbers."""

    env: str
    agent: str
    replay: str
    seeds: int
    seed: int
    env_options: EnvironmentConfig
    agent_options: Any
    replay_options: Any
    sizes: ReplaySizes
    loop: LoopConfig

    def to_json(self) -> dict[str, Any]:
        """Return nested plain values, the sections named as on the command line."""
        return {
            "env": self.env,
            "agent": self.agent,
            "replay": self.replay,
            "seeds": self.seeds,
            "seed": self.seed,
            **dataclasses.asdict(self.loop),
            **dataclasses.asdict(self.sizes),
            "env_options": dataclasses.asdict(self.env_options),
            "agent_options": dataclasses.asdict(self.agent_options),
            "replay_options": dataclasses.asdict(self.replay_options),
        }


def defaults(env: str, agent: str, replay: str) -> RunConfig:
    """Return the run that these three names stand for.

    Raises:
      ValueError: they do not fit one another.
    """
    registry.check_fit(agent, replay, env)
    entry = registry.AGENTS[agent]
    return RunConfig(
        env=env,
        agent=agent,
        replay=replay,
        seeds=5,
        seed=0,
        env_options=EnvironmentConfig(),
        agent_options=entry.config(),
        replay_options=METHODS[replay].config(),
        sizes=entry.sizes,
        loop=entry.loop,
    )


def build(config: RunConfig) -> Program:
    """Make the program of a run.

    Raises:
      ValueError: one line that says which option does not fit.
    """
    if config.seeds < 1:
        raise ValueError(f"seeds is {config.seeds}: it must be at least 1")
    registry.check_fit(config.agent, config.replay, config.env)
    entry = registry.AGENTS[config.agent]
    sizes = config.sizes.resolve(config.loop.steps)
    updates = schedule(config.loop, sizes.num_envs).updates
    method = METHODS[config.replay].method(config.replay_options, updates)
    replay = make_replay(method.sampler, **dataclasses.asdict(sizes))
    environment = environments.make(config.env, **config.env_options.kwargs())
    agent = entry.make(config.agent_options, environment.action_space, method.objective)
    return make_program(environment, agent, replay, config.loop)
