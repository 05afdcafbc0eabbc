"""The trained policy of one seed of a run, from the run's last checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax

from experiments.environments.types import Array, Environment, EnvironmentSpec
from experiments.runs import checkpoint, run_config
from experiments.runs.assembly import assemble, join
from experiments.runs.folder import check_demos
from experiments.runs.run_config import RunConfig
from experiments.training.phases import make_phases


class Policy(NamedTuple):
    """The policy of one seed of a run.

    All functions are pure and act as in evaluations. Actions are in [-1, 1], or integers.

    * `greedy(agent, obs[N, ...], key) -> action[N, ...]` acts at the first step of an episode or,
      for agents without memory, at any step.
    * `act(agent, obs[N, ...], key, memory) -> (action[N, ...], memory)` acts at any step.
    * `no_memory(agent, obs[N, ...]) -> memory` is the memory before the first step of an episode.
    """

    greedy: Callable[[Any, chex.ArrayTree, Array], Array]
    act: Callable[[Any, chex.ArrayTree, Array, Any], tuple[Array, Any]]
    no_memory: Callable[[Any, chex.ArrayTree], Any]
    agent: Any  # state of the agent
    spec: EnvironmentSpec
    environment: Environment | None  # None if it runs on the host
    step: int  # number of agent steps of training


def read_config(folder: Path) -> RunConfig:
    """Return the configuration of a run; raise ValueError if run or checkpoint is missing."""
    config = run_config.read(folder)
    if checkpoint.latest(folder / "checkpoints") is None:
        raise ValueError(f"the run in {folder} has no checkpoint yet: wait for one, or --resume it")
    return config


def check_seed(config: RunConfig, seed: int | None) -> int:
    """Return `seed`, by default the first one; raise ValueError if the run does not have it."""
    first, last = config.seed, config.seed + config.seeds - 1
    if seed is not None and not first <= seed <= last:
        has = f"seed {first}" if first == last else f"seeds {first} to {last}"
        raise ValueError(f"the run has {has}, and no seed {seed}")
    return first if seed is None else seed


def load(folder: Path, config: RunConfig, seed: int) -> Policy:
    """Return the policy of a seed of the run in `folder`, without reading its replay.

    Raises:
      ValueError: a package is missing, or the checkpoint is damaged or does not fit the agent.
    """
    check_demos(folder, config)
    parts = assemble(config)
    run = join(parts, config)
    checkpoints = folder / "checkpoints"
    step = checkpoint.latest(checkpoints)
    try:
        meta = checkpoint.read_run(checkpoints, step)
        run_config.check_same(meta["config"], config.to_json(), folder)
        checkpoint.check_name(checkpoints, step, run.schedule, meta["progress"])
        agents = checkpoint.load(checkpoints, run.like().agent, step, part=".agent")
    except checkpoint.Damaged as error:
        before = checkpoint.latest(checkpoints, before=step)
        if before is None:
            raise
        raise ValueError(f"{error}, or move it away to use that of step {before}") from None
    # Leaves that all seeds share, such as clocks, have no seed axis (None in the axes).
    agent = jax.tree.map(
        lambda axis, leaf: leaf if axis is None else leaf[seed - config.seed],
        run.axes.agent, agents, is_leaf=lambda axis: axis is None,
    )  # fmt: skip
    phases = make_phases(parts.spec.action_space, parts.agent, parts.replay, config.loop)
    compiled = parts.environment if isinstance(parts.environment, Environment) else None

    def greedy(agent: Any, obs: chex.ArrayTree, key: Array) -> Array:
        return phases.greedy(agent, obs, key, phases.no_memory(agent, obs))[0]

    return Policy(greedy, phases.greedy, phases.no_memory, agent, parts.spec, compiled, step)
