"""From a RunConfig to the parts that it names, checked and put together."""

import contextlib
import dataclasses
import functools
import math
import os
from typing import Any, NamedTuple

import jax

from agents.types import Agent
from experiments import environments
from experiments.environments.host import HostEnvironment
from experiments.environments.types import Environment, EnvironmentSpec
from experiments.runs import registry
from experiments.runs.run_config import RunConfig
from experiments.training.config import ReplaySizes
from experiments.training.host_loop import HostRun, MakeHost
from experiments.training.host_store import host_bytes
from experiments.training.loop import make_program
from experiments.training.phases import make_phases
from experiments.training.rows_loop import RowsRun
from experiments.training.schedule import schedule
from experiments.training.seeds import CompiledRun, Run, with_axis
from experiments.training.spread import layout
from experiments.training.state import a_key, example_action
from jaxreplay.loops import frames
from jaxreplay.methods import METHODS
from jaxreplay.replay import Replay

_TALLY = 32  # bytes of an episode of an evaluation: its keys, its return, its length
_HOST_ENVIRONMENT = 6_000  # bytes of an environment on the host, at least: CartPole's
_DRAWN = 24  # bytes for each transition that is drawn to be looked at: random words and slots
_MOST_SEEDS, _LARGEST_SEED = 100_000, 2**31


class Parts(NamedTuple):
    """What a run is made of."""

    spec: EnvironmentSpec
    environment: Environment | MakeHost  # one that compiles, or how to make a batch on the host
    agent: Agent
    replay: Replay


def assemble(config: RunConfig) -> Parts:
    """Make the parts of a run.

    Raises:
      ValueError: one line that says which option does not fit.
    """
    if not 1 <= config.seeds <= _MOST_SEEDS:
        raise ValueError(f"seeds is {config.seeds}: it must lie in [1, {_MOST_SEEDS:,}]")
    if not 0 <= config.seed <= _LARGEST_SEED - config.seeds:
        raise ValueError(
            f"seed is {config.seed}: with {config.seeds} seeds from it, it must lie in "
            f"[0, {_LARGEST_SEED - config.seeds:,}]"
        )
    registry.check_fit(config.agent, config.replay, config.env)
    sizes = config.sizes.resolve(config.loop.steps)
    updates = schedule(config.loop, sizes.num_envs).updates
    method = METHODS[config.replay].method(config.replay_options.for_run(updates))
    registry.check_made(config.agent, config.replay, method)
    environment, spec = _environment(config)
    sizes = _stacked(sizes, spec)
    _check_frames(config, sizes)
    replay = sizes.make(method.sampler)
    make_agent = registry.AGENTS[config.agent].make
    agent = make_agent(config.agent_options, spec.action_space, method.objective)
    _check_network(spec, agent)
    return Parts(spec, environment, agent, replay)


def build(config: RunConfig, devices: int | None = None) -> Run:
    """Make what a run runs: programs, or a loop on the host where its environments live there.

    Args:
      config: what to run.
      devices: over how many cores or accelerators its seeds go; None: all of this machine. A loop
        on the host has one.

    Raises:
      ValueError: one line that says which option does not fit.
    """
    parts = assemble(config)
    _check_memory(parts, config, devices)
    return joined(parts, config, devices)


def joined(parts: Parts, config: RunConfig, devices: int | None = None) -> Run:
    """Put the parts of a run together, as `build`.

    Raises:
      ValueError: one line that says which option does not fit.
    """
    spec, environment, agent, replay = parts
    seeds = range(config.seed, config.seed + config.seeds)
    if isinstance(environment, Environment) and config.sizes.replay_on == "host":
        return RowsRun(environment, agent, replay, config.loop, seeds)
    if isinstance(environment, Environment):
        program = make_program(environment, agent, replay, config.loop)
        return CompiledRun(program, seeds, layout(config.seeds, devices))
    return HostRun(environment, spec, agent, replay, config.loop, seeds)


def _environment(config: RunConfig) -> tuple[Environment | MakeHost, EnvironmentSpec]:
    """Make the environment, or what makes batches of it, and tell what it is like."""
    if not environments.is_host(config.env):
        environment = environments.make(config.env, config.env_options)
        return environment, environment.spec
    make = functools.partial(_make_host, config)
    with contextlib.closing(make(1, True)) as batch:
        return make, batch.spec


def _make_host(config: RunConfig, num_envs: int, training: bool) -> HostEnvironment:
    return environments.make_host(config.env, num_envs, config.env_options, training)


def _stacked(sizes: ReplaySizes, environment: EnvironmentSpec) -> ReplaySizes:
    """Return the sizes with the environment's stack of frames unless one is given."""
    if sizes.frame_stack is None:
        return dataclasses.replace(sizes, frame_stack=environment.frame_stack)
    return sizes


def _check_frames(config: RunConfig, sizes: ReplaySizes) -> None:
    """Refuse what can't be done with frames that are stored once, or on the host."""
    if sizes.frame_stack and config.loop.scale_observations:
        raise ValueError(
            "scale_observations looks at whole observations, which are not stored where frames "
            "are stored once: leave it out, or give --frame-stack 0"
        )
    if sizes.frame_stack and config.loop.n_step > frames.AHEAD:
        raise ValueError(
            f"n_step is {config.loop.n_step}: with frames stored once it must be at most "
            f"{frames.AHEAD}"
        )
    if sizes.replay_on == "device":
        return
    if config.loop.scale_observations:
        raise ValueError(
            "scale_observations looks at whole observations, which are not on the device with "
            "--replay-on host: use --scale-observations false, or leave --replay-on out"
        )
    if sizes.frame_stack and not environments.is_host(config.env):
        raise ValueError(
            f"frames stored once are kept on the host only where environments live there, and "
            f"{config.env} compiles: give --frame-stack 0, or leave --replay-on out"
        )


def _check_memory(parts: Parts, config: RunConfig, devices: int | None) -> None:
    """Refuse what the memory can't hold, before anything is traced at length.

    Raises:
      ValueError: the states of all seeds take more than its memory, or what they keep on the host
        takes more than the machine's.
    """
    where, compiled = layout(config.seeds, devices), isinstance(parts.environment, Environment)
    spread = compiled and config.sizes.replay_on == "device"
    lanes = max(where.programs * where.width, config.seeds) if spread else config.seeds
    on_device, on_host = (lanes * size for size in _sizes(parts, config))
    machine, device = machine_bytes(), device_bytes() * (len(set(where.devices)) if spread else 1)
    if jax.default_backend() == "cpu":  # one memory for both
        on_device, on_host = on_device + on_host, 0
    if on_device > device:
        raise ValueError(
            f"the run's arrays take {on_device / 1e9:,.0f} GB, and the device has "
            f"{device / 1e9:,.0f}: {smaller(parts, config)}"
        )
    if on_host > machine:
        raise ValueError(
            f"what is stored on the host takes {on_host / 1e9:,.0f} GB, and the machine has "
            f"{machine / 1e9:,.0f}: {smaller(parts, config)}"
        )


def smaller(parts: Parts, config: RunConfig) -> str:
    """Say which option to lower where memory does not suffice: that which takes the most."""
    loop = config.loop
    found = {
        "a smaller capacity, smaller networks, or fewer seeds": sum(_states(parts, config)),
        f"a smaller --inspect than {loop.inspect}": _inspection_bytes(parts, config),
        f"fewer --eval-episodes than {loop.eval_episodes}": sum(_evaluation_bytes(parts, config)),
    }
    return f"use {max(found, key=found.__getitem__)}"


def state_bytes(parts: Parts, config: RunConfig) -> int:
    """Return what one seed takes on the device, but for the environments' own states in training;
    nothing is traced."""
    return _sizes(parts, config)[0]


def _sizes(parts: Parts, config: RunConfig) -> tuple[int, int]:
    """Return the bytes of one seed's state, evaluation and inspection, and those on the host."""
    (device, host), (evaluation, environments_) = (
        _states(parts, config),
        _evaluation_bytes(parts, config),
    )
    at_log_points = max(evaluation, _inspection_bytes(parts, config))
    return device + at_log_points, host + environments_


def _states(parts: Parts, config: RunConfig) -> tuple[int, int]:
    """Return the bytes of one seed's state, but for the environments' own, and on the host."""
    phases = make_phases(parts.spec.action_space, parts.agent, parts.replay, config.loop)
    obs = with_axis(parts.spec.obs, parts.replay.num_envs)
    state = jax.eval_shape(phases.start, a_key(), (), obs)
    return _bytes(state), host_bytes(state.replay.ring)


def _evaluation_bytes(parts: Parts, config: RunConfig) -> tuple[int, int]:
    """Return the least that an evaluation takes, on the device and on the host."""
    episodes, obs = config.loop.eval_episodes, _bytes(parts.spec.obs)
    if not isinstance(parts.environment, Environment):
        return episodes * (obs + _TALLY), episodes * (obs + _HOST_ENVIRONMENT)
    playing = jax.eval_shape(parts.environment.reset, a_key())
    return episodes * (2 * _bytes(playing) + _TALLY), 0  # before and after a step


def _inspection_bytes(parts: Parts, config: RunConfig) -> int:
    """Return the least that drawing the transitions of an inspection takes."""
    return config.loop.inspect * parts.replay.batch_size * _DRAWN


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def machine_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_bytes() -> int:
    """Return the memory of the first device; on CPU, that of the machine."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return machine_bytes() if limit is None else limit


def _check_network(environment: EnvironmentSpec, agent: Agent) -> None:
    """Refuse a network that does not fit the observations, before a folder is claimed."""
    action = example_action(environment.action_space)
    jax.eval_shape(agent.init, a_key(), environment.obs, action)
