"""Construction of a run from its RunConfig, with checks of options and memory."""

import contextlib
import dataclasses
import math
import os
from typing import Any, NamedTuple

import jax

from agents.types import Agent
from experiments import environments
from experiments.environments.episodes import example_action
from experiments.environments.types import Environment, EnvironmentSpec
from experiments.runs import registry
from experiments.runs.run_config import RunConfig, check_seeds
from experiments.training.config import FRAMES_AHEAD, ReplaySizes
from experiments.training.demos import TransitionSpec
from experiments.training.host_loop import MakeHost
from experiments.training.phases import Phases, make_phases
from experiments.training.schedule import schedule
from experiments.training.seeds import with_axis
from experiments.training.state import a_key
from jaxreplay.methods import METHODS
from jaxreplay.replay import Replay

_TALLY = 32  # bytes per episode of an evaluation: keys, return and length
_HOST_ENVIRONMENT = 6_000  # bytes of the smallest environment on the host, CartPole
_DRAWN = 24  # bytes per transition drawn for inspection: random bits and indices


class Parts(NamedTuple):
    """The parts of a run."""

    spec: EnvironmentSpec
    environment: Environment | MakeHost  # compiled, or function that makes a batch on the host
    agent: Agent
    replay: Replay


def assemble(config: RunConfig) -> Parts:
    """Return the parts of a run.

    Raises:
      ValueError: an option is out of bounds, or parts do not fit one another.
    """
    check_seeds(config.seeds, config.seed)
    registry.check_fit(config.agent, config.replay, config.env)
    sizes = config.sizes.resolve(config.loop.steps)
    updates = schedule(config.loop, sizes.num_envs).updates
    method = METHODS[config.replay].method(config.replay_options.for_run(updates))
    registry.check_made(config.agent, config.replay, method)
    environment, spec = _environment(config)
    if sizes.frame_stack is None:
        sizes = dataclasses.replace(sizes, frame_stack=spec.frame_stack)
    _check_frames(config, sizes, spec)
    make_agent = registry.AGENTS[config.agent].make
    agent = make_agent(config.agent_options.for_run(updates), spec.action_space, method.objective)
    # Raises an error if the network does not fit the observations.
    jax.eval_shape(agent.init, a_key(), spec.obs, example_action(spec.action_space))
    sampler = method.sampler if spec.goals is None else method.sampler.for_goals(spec.goals)
    task = TransitionSpec(spec.action_space, config.loop.gamma, config.loop.n_step)
    replay = sizes.make(sampler, method.objective.candidates, task)
    parts = Parts(spec, environment, agent, replay)
    if registry.AGENTS[config.agent].offers.on_policy:
        # Raises an error if the agent cannot divide a batch into minibatches.
        phases, start = _start(parts, config)
        jax.eval_shape(phases.learn, start)
    return parts


def _environment(config: RunConfig) -> tuple[Environment | MakeHost, EnvironmentSpec]:
    """Return the environment, or a function that makes batches on the host, and the spec."""
    if environments.is_host(config.env) and config.loop.mesh > 1:
        raise ValueError(
            f"mesh is {config.loop.mesh}, but {config.env} steps on the host, where a run has one "
            "device: use mesh 1, or an environment that compiles"
        )
    if not environments.is_host(config.env):
        environment = environments.make(config.env, config.env_options)
        return environment, environment.spec

    def make(num_envs: int, training: bool) -> Any:
        return environments.make_host(config.env, num_envs, config.env_options, training)

    with contextlib.closing(make(1, True)) as batch:
        return make, batch.spec


def _check_frames(config: RunConfig, sizes: ReplaySizes, spec: EnvironmentSpec) -> None:
    """Raise ValueError for options that do not suit a replay that stores each frame once."""
    shapes = [x.shape for x in jax.tree.leaves(spec.obs)]
    if sizes.frame_stack and len(shapes) > 1:
        raise ValueError(
            "a replay that stores each frame once requires observations of one array, but those of "
            f"{config.env} are {len(shapes)} arrays: give --frame-stack 0"
        )
    if config.loop.scale_observations and sizes.frame_stack:
        raise ValueError(
            "--scale-observations reads whole observations, but this replay stores single frames: "
            "leave out --scale-observations, or give --frame-stack 0"
        )
    if sizes.frame_stack and config.loop.n_step > FRAMES_AHEAD:
        raise ValueError(
            f"n_step is {config.loop.n_step}: in a replay that stores each frame once, it must be "
            f"at most {FRAMES_AHEAD}"
        )
    if sizes.frame_stack and (len(shapes[0]) < 2 or shapes[0][-1] != sizes.frame_stack):
        raise ValueError(
            f"--frame-stack {sizes.frame_stack} is for observations [..., {sizes.frame_stack}] of "
            f"stacked frames, and observations of {config.env} have shape {shapes[0]}: leave out "
            "--frame-stack"
        )


def smaller(parts: Parts, config: RunConfig) -> str:
    """Return advice for a smaller run, about the option that needs the most memory."""
    loop = config.loop
    found = {
        "a smaller capacity, smaller networks, or fewer seeds": _training_bytes(parts, config),
        f"a smaller --inspect than {loop.inspect}": _inspection_bytes(parts, config),
        f"fewer --eval-episodes than {loop.eval_episodes}": sum(_evaluation_bytes(parts, config)),
    }
    return f"use {max(found, key=found.__getitem__)}"


def memory(parts: Parts, config: RunConfig, platform: str) -> int:
    """Return the bytes of one seed on a device, without the states of training environments.

    On CPU, where device and host share their memory, the bytes include the arrays of evaluations on
    the host.
    """
    evaluation, on_host = _evaluation_bytes(parts, config)
    most = max(evaluation, _inspection_bytes(parts, config))
    shared = on_host if platform == "cpu" else 0
    return _training_bytes(parts, config) + most + shared


def _training_bytes(parts: Parts, config: RunConfig) -> int:
    """Return the bytes of one seed's state, without environments."""
    return _bytes(_start(parts, config)[1])


def _start(parts: Parts, config: RunConfig) -> tuple[Phases, Any]:
    """Return the phases of a run, and the shapes of its first state without environments."""
    phases = make_phases(parts.spec.action_space, parts.agent, parts.replay, config.loop)
    obs = with_axis(parts.spec.obs, parts.replay.num_envs)
    return phases, jax.eval_shape(phases.start, a_key(), (), obs)


def _evaluation_bytes(parts: Parts, config: RunConfig) -> tuple[int, int]:
    """Return lower bounds of the bytes of an evaluation, on the device and on the host."""
    episodes, obs = config.loop.eval_episodes, _bytes(parts.spec.obs)
    if not isinstance(parts.environment, Environment):
        return episodes * (obs + _TALLY), episodes * (obs + _HOST_ENVIRONMENT)
    playing = jax.eval_shape(parts.environment.reset, a_key())
    return episodes * (2 * _bytes(playing) + _TALLY), 0  # before and after a step


def _inspection_bytes(parts: Parts, config: RunConfig) -> int:
    return config.loop.inspect * parts.replay.batch_size * _DRAWN


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def machine_bytes() -> int:
    """Return the memory of the machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_bytes() -> int:
    """Return the memory of the first device or, on CPU, of the machine, in bytes."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return machine_bytes() if limit is None else limit
