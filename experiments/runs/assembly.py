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
from experiments.training.config import ReplaySizes
from experiments.training.demos import Task
from experiments.training.host_loop import HostRun, MakeHost
from experiments.training.host_store import host_bytes
from experiments.training.loop import make_program
from experiments.training.phases import make_phases
from experiments.training.rows_loop import RowsRun
from experiments.training.schedule import schedule
from experiments.training.seeds import CompiledRun, Run, with_axis
from experiments.training.spread import layout
from experiments.training.state import a_key
from jaxreplay.loops import frames
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
    agent = make_agent(config.agent_options, spec.action_space, method.objective)
    # Raises an error if the network does not fit the observations.
    jax.eval_shape(agent.init, a_key(), spec.obs, example_action(spec.action_space))
    sampler = method.sampler if spec.goals is None else method.sampler.for_goals(spec.goals)
    task = Task(spec.action_space, config.loop.gamma, config.loop.n_step)
    replay = sizes.make(sampler, method.objective.candidates, task)
    return Parts(spec, environment, agent, replay)


def build(config: RunConfig, devices: int | None = None) -> Run:
    """Return a run: compiled programs, or a loop on the host if its environments run there.

    Args:
      config: configuration of the run.
      devices: number of cores or accelerators for the seeds, by default all of this machine. A loop
        on the host uses one.

    Raises:
      ValueError: an option does not fit, or the run needs more memory than there is.
    """
    parts = assemble(config)
    _check_memory(parts, config, devices)
    return join(parts, config, devices)


def join(parts: Parts, config: RunConfig, devices: int | None = None) -> Run:
    """Return a run from its parts, like `build` but without the check of memory."""
    spec, environment, agent, replay = parts
    seeds = range(config.seed, config.seed + config.seeds)
    if not isinstance(environment, Environment):
        return HostRun(environment, spec, agent, replay, config.loop, seeds)
    if config.sizes.replay_on == "host":
        return RowsRun(environment, agent, replay, config.loop, seeds)
    program = make_program(environment, agent, replay, config.loop)
    return CompiledRun(program, seeds, layout(config.seeds, devices))


def _environment(config: RunConfig) -> tuple[Environment | MakeHost, EnvironmentSpec]:
    """Return the environment, or a function that makes batches on the host, and its spec."""
    if not environments.is_host(config.env):
        environment = environments.make(config.env, config.env_options)
        return environment, environment.spec

    def make(num_envs: int, training: bool) -> Any:
        return environments.make_host(config.env, num_envs, config.env_options, training)

    with contextlib.closing(make(1, True)) as batch:
        return make, batch.spec


def _check_frames(config: RunConfig, sizes: ReplaySizes, spec: EnvironmentSpec) -> None:
    """Raise ValueError for options unsuited to frames stored once or to a replay on the host."""
    on_host, shapes = sizes.replay_on == "host", [x.shape for x in jax.tree.leaves(spec.obs)]
    if sizes.frame_stack and len(shapes) > 1:
        raise ValueError(
            f"frames are stored once only of observations of one array, and {config.env} observes "
            f"{len(shapes)}: give --frame-stack 0"
        )
    if config.loop.scale_observations and (on_host or sizes.frame_stack):
        instead = "leave --replay-on out" if on_host else "give --frame-stack 0"
        raise ValueError(
            "--scale-observations reads whole observations, which this replay does not keep on the "
            f"device: leave it out, or {instead}"
        )
    if sizes.frame_stack and config.loop.n_step > frames.AHEAD:
        raise ValueError(
            f"n_step is {config.loop.n_step}: with frames stored once it must be at most "
            f"{frames.AHEAD}"
        )
    if on_host and sizes.frame_stack and not environments.is_host(config.env):
        raise ValueError(
            f"frames stored once are kept on the host only if the environments run there, and "
            f"{config.env} compiles: give --frame-stack 0, or leave --replay-on out"
        )
    if sizes.frame_stack and (len(shapes[0]) < 2 or shapes[0][-1] != sizes.frame_stack):
        raise ValueError(
            f"--frame-stack {sizes.frame_stack} is for observations [..., {sizes.frame_stack}] of "
            f"stacked frames, and those of {config.env} have shape {shapes[0]}: leave it out"
        )


def _check_memory(parts: Parts, config: RunConfig, devices: int | None) -> None:
    """Raise ValueError if the arrays of all seeds exceed the memory of device or host."""
    where, spread = layout(config.seeds, devices), isinstance(parts.environment, Environment)
    seeds = max(where.programs * where.width, config.seeds) if spread else config.seeds
    on_device, on_host = (seeds * size for size in _sizes(parts, config))
    machine, device = machine_bytes(), device_bytes() * (len(set(where.devices)) if spread else 1)
    if jax.default_backend() == "cpu":  # device and host share one memory
        on_device, on_host = on_device + on_host, 0
    for name, needs, has in (("device", on_device, device), ("host", on_host, machine)):
        if needs > has:
            raise ValueError(
                f"the run's arrays on the {name} take {needs / 1e9:,.0f} GB of {has / 1e9:,.0f} GB "
                f"there: {smaller(parts, config)}"
            )


def smaller(parts: Parts, config: RunConfig) -> str:
    """Return advice about the option that needs the most memory."""
    loop = config.loop
    found = {
        "a smaller capacity, smaller networks, or fewer seeds": sum(_states(parts, config)),
        f"a smaller --inspect than {loop.inspect}": _inspection_bytes(parts, config),
        f"fewer --eval-episodes than {loop.eval_episodes}": sum(_evaluation_bytes(parts, config)),
    }
    return f"use {max(found, key=found.__getitem__)}"


def state_bytes(parts: Parts, config: RunConfig) -> int:
    """Return the bytes of one seed on the device, without the states of training environments."""
    return _sizes(parts, config)[0]


def _sizes(parts: Parts, config: RunConfig) -> tuple[int, int]:
    """Return the bytes of one seed's state, evaluation and inspection on device and host."""
    device, host = _states(parts, config)
    evaluation, on_host = _evaluation_bytes(parts, config)
    return device + max(evaluation, _inspection_bytes(parts, config)), host + on_host


def _states(parts: Parts, config: RunConfig) -> tuple[int, int]:
    """Return the bytes of one seed's state on device and host, without environments."""
    phases = make_phases(parts.spec.action_space, parts.agent, parts.replay, config.loop)
    obs = with_axis(parts.spec.obs, parts.replay.num_envs)
    state = jax.eval_shape(phases.start, a_key(), (), obs)
    return _bytes(state), host_bytes(state.replay.ring)


def _evaluation_bytes(parts: Parts, config: RunConfig) -> tuple[int, int]:
    """Return a lower bound of the bytes of an evaluation on device and host."""
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
    """Return the memory of the first device in bytes; on CPU, of the machine."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return machine_bytes() if limit is None else limit
