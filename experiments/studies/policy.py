"""The trained policy of one seed of a run, from the run's last checkpoint."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax

from experiments.environments.types import Array, Environment, EnvironmentSpec
from experiments.runs.assembly import Parts, assemble
from experiments.runs.run_config import RunConfig
from experiments.studies import batch, checkpoints, devices, programs, store
from experiments.studies.definition import Study
from experiments.studies.plan import Job
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


def read(folder: Path) -> Study:
    """Return the study of the run in a folder.

    Raises:
      ValueError: the folder has no run, or is damaged.
    """
    found = store.read(folder)
    study = found.study.validated(folder)
    if not study.is_run:
        raise ValueError(f"{folder} has a study of several runs: give the folder of a run")
    return study


def chosen(
    folder: Path, named: Mapping[str, str | None], seed: int | None
) -> tuple[Study, RunConfig, int]:
    """Return the study of the run in a folder, its configuration, and a seed that it has.

    Args:
      folder: folder of a run.
      named: environment, agent and method given on the command line, by kind; None if not given.
      seed: seed of the run; None selects the first.

    Raises:
      ValueError: If the folder has no run, or the run differs from `named` or lacks the seed.
    """
    study = read(folder)
    (config,) = study.bases.values()
    for kind, name in named.items():
        if name not in (None, own := getattr(config, kind)):
            raise ValueError(
                f"the run used --{kind} {own}, but the command has {name}: remove --{kind}"
            )
    return study, config, _check_seed(config, seed)


def _check_seed(config: RunConfig, seed: int | None) -> int:
    """Return `seed`, by default the first one; raise ValueError if the run does not have it."""
    first, last = config.seed, config.seed + config.seeds - 1
    if seed is not None and not first <= seed <= last:
        has = f"seed {first}" if first == last else f"seeds {first} to {last}"
        raise ValueError(f"the run has {has}, and no seed {seed}: use another seed")
    return first if seed is None else seed


class Saved(NamedTuple):
    """Parts of the state of one seed of a run, from the run's last checkpoint."""

    parts: Parts
    config: RunConfig
    state: dict[str, Any]  # fields of a `LoopState` by name
    step: int  # number of agent steps of training


def load(folder: Path, study: Study, seed: int) -> Policy:
    """Return the policy of a seed of the run in `folder`, without reading its replay.

    Raises:
      ValueError: a package is missing, there is no checkpoint yet, or the checkpoint is damaged or
        does not fit the agent.
    """
    parts, config, state, step = saved(folder, study, seed, ["agent"])
    phases = make_phases(parts.spec.action_space, parts.agent, parts.replay, config.loop)
    compiled = parts.environment if isinstance(parts.environment, Environment) else None

    def greedy(agent: Any, obs: chex.ArrayTree, key: Array) -> Array:
        return phases.greedy(agent, obs, key, phases.no_memory(agent, obs))[0]

    return Policy(
        greedy, phases.greedy, phases.no_memory, state["agent"], parts.spec, compiled, step
    )


def saved(folder: Path, study: Study, seed: int, names: Sequence[str]) -> Saved:
    """Return fields of the state of a seed of the run in `folder`.

    Args:
      folder: folder of the run.
      study: study of the run.
      seed: one of the run's seeds.
      names: names of fields of `LoopState`, such as "agent"; others are not read.

    Raises:
      ValueError: as `load`.
    """
    (point,) = study.points()
    loop = dataclasses.replace(point.config.loop, mesh=1)  # devices share the agent
    point = point._replace(config=dataclasses.replace(point.config, loop=loop))
    store.check_demos(store.read(folder).facts, [point], folder)
    path, seeds, step = checkpoints.of_seed(folder, seed)
    parts = assemble(point.config)
    runs = [(point, number) for number in seeds]
    (group,) = programs.grouped([point])
    job = Job(group, tuple(runs), len(runs), len(runs), 0)
    driver = batch.driver_of(job, runs, devices.choose(1))
    like = driver.like()
    # Leaves that all seeds share, such as clocks, have no seed axis (None in the axes).
    state = {
        name: jax.tree.map(
            lambda axis, leaf: leaf if axis is None else leaf[seeds.index(seed)],
            getattr(driver.axes, name),
            checkpoints.read_part(path, name, getattr(like, name)),
            is_leaf=lambda axis: axis is None,
        )
        for name in names
    }
    return Saved(parts, point.config, state, step)
