"""The trained policy of one seed of a run, from the run's last checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax

from experiments.environments.types import Array, Environment, EnvironmentSpec
from experiments.runs import checkpoint, resumption, run_config, same_config
from experiments.runs.assembly import assemble, joined
from experiments.runs.run_config import RunConfig
from experiments.training.phases import make_phases
from experiments.training.schedule import schedule


class Policy(NamedTuple):
    """How one seed of a run acts.

    * `greedy(agent, obs[N, ...], key) -> action[N, ...]`: pure, as in evaluations; actions in
      [-1, 1] or integers.
    """

    greedy: Callable[[Any, chex.ArrayTree, Array], Array]
    agent: Any  # the state of the agent
    spec: EnvironmentSpec
    environment: Environment | None  # None: it lives on the host
    step: int  # agent steps of training


def read_config(folder: Path) -> RunConfig:
    """Read the configuration of a run that has a checkpoint.

    Raises:
      ValueError: one line: there is no run in `folder`, or it has no checkpoint yet.
    """
    config = run_config.read(folder)
    if checkpoint.latest(folder / "checkpoints") is None:
        raise ValueError(f"the run in {folder} has no checkpoint yet: wait for one, or --resume it")
    return config


def check_seed(config: RunConfig, seed: int | None) -> int:
    """Return the seed to look at: the one asked for, or the run's first.

    Raises:
      ValueError: the run has no such seed.
    """
    first, last = config.seed, config.seed + config.seeds - 1
    if seed is not None and not first <= seed <= last:
        has = f"seed {first}" if first == last else f"seeds {first} to {last}"
        raise ValueError(f"the run has {has}, and no seed {seed}")
    return first if seed is None else seed


def load(folder: Path, config: RunConfig, seed: int) -> Policy:
    """Return the policy of a seed of the run in `folder`; its replay is not read.

    Raises:
      ValueError: the run cannot be made anew (a package is missing), or its checkpoint does not
        fit or is damaged.
    """
    parts = assemble(config)
    run = joined(parts, config)
    checkpoints = folder / "checkpoints"
    step = checkpoint.latest(checkpoints)
    try:
        meta = resumption.read_meta(checkpoints, step)
        same_config.check(meta["config"], config.to_json(), folder)
        agents = checkpoint.load(checkpoints, run.like().agent, step, part=".agent")
        plan = schedule(config.loop, config.sizes.num_envs)
        resumption.check_name(checkpoints, resumption.Progress(*meta["progress"]), plan)
    except checkpoint.Damaged as error:
        before = checkpoint.latest(checkpoints, before=step)
        rest = "train it anew" if before is None else f"move it away to see that of step {before}"
        raise ValueError(f"{error}: restore it, or {rest}") from None
    # Leaves that all seeds share (clocks) have no axis of seeds; None stands for them.
    agent = jax.tree.map(
        lambda axis, leaf: leaf if axis is None else leaf[seed - config.seed],
        run.axes.agent, agents, is_leaf=lambda axis: axis is None,
    )  # fmt: skip
    phases = make_phases(parts.spec.action_space, parts.agent, parts.replay, config.loop)
    compiled = parts.environment if isinstance(parts.environment, Environment) else None
    return Policy(phases.greedy, agent, parts.spec, compiled, step)
