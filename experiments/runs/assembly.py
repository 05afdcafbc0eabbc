"""From a RunConfig to the parts that it names, checked and put together."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.types import Agent, Discrete
from experiments import environments
from experiments.environments.host import HostEnvironment
from experiments.environments.types import Environment
from experiments.runs import registry
from experiments.runs.run_config import RunConfig
from experiments.training import host_loop
from experiments.training.config import ReplaySizes
from experiments.training.host_loop import HostRun, MakeHost
from experiments.training.loop import Program, make_program
from experiments.training.schedule import schedule
from experiments.training.seeds import CompiledRun, Run
from experiments.training.steps import Steps, make_steps
from jaxreplay.frames import AHEAD
from jaxreplay.methods import METHODS
from jaxreplay.types import Replay


class Parts(NamedTuple):
    """What a run is made of."""

    environment: Environment  # a stand-in with the shapes of one that lives on the host
    replay: Replay
    steps: Steps
    program: Program
    make_host: MakeHost | None  # of environments that live on the host


def assemble(config: RunConfig) -> Parts:
    """Make the parts of a run.

    Raises:
      ValueError: one line that says which option does not fit.
    """
    if config.seeds < 1:
        raise ValueError(f"seeds is {config.seeds}: it must be at least 1")
    registry.check_fit(config.agent, config.replay, config.env)
    entry = registry.AGENTS[config.agent]
    registry.check_options(config.agent, config.replay_options)
    sizes = config.sizes.resolve(config.loop.steps)
    updates = schedule(config.loop, sizes.num_envs).updates
    method = METHODS[config.replay].method(config.replay_options, updates)
    make = None
    if environments.is_host(config.env):
        make = functools.partial(_make_host, config)
        environment = host_loop.stand_in(make)
    else:
        environment = environments.make(config.env, config.env_options)
    sizes = _stacked(sizes, environment)
    _check_frames(config, sizes, make)
    replay = sizes.make(method.sampler)
    shaped = dataclasses.replace(sizes, frames_on_host=False).make(method.sampler)
    agent = entry.make(config.agent_options, environment.action_space, method.objective)
    _check_network(environment, agent)
    program = make_program(environment, agent, shaped, config.loop)
    steps = make_steps(environment.action_space, agent, replay, config.loop)
    return Parts(environment, replay, steps, program, make)


def build(config: RunConfig) -> Run:
    """Make what a run runs: one program, or a loop on the host where its environments live there.

    Raises:
      ValueError: one line that says which option does not fit.
    """
    parts = assemble(config)
    seeds = range(config.seed, config.seed + config.seeds)
    if parts.make_host is None:
        return CompiledRun(parts.program, seeds)
    return HostRun(
        parts.make_host, parts.program, parts.steps, seeds, parts.replay, config.loop,
        config.sizes.frames_on_host,
    )  # fmt: skip


def _make_host(config: RunConfig, num_envs: int, training: bool) -> HostEnvironment:
    return environments.make_host(config.env, num_envs, config.env_options, training)


def _stacked(sizes: ReplaySizes, environment: Environment) -> ReplaySizes:
    """Return the sizes with the environment's stack of frames unless one is given."""
    if sizes.frame_stack is None:
        return dataclasses.replace(sizes, frame_stack=environment.frame_stack)
    return sizes


def _check_frames(config: RunConfig, sizes: ReplaySizes, make_host: MakeHost | None) -> None:
    """Refuse what can't be done with frames that are stored once, or on the host."""
    if sizes.frame_stack and config.loop.scale_observations:
        raise ValueError(
            "scale_observations looks at whole observations, which are not stored where frames "
            "are stored once: leave it out, or give --frame-stack 0"
        )
    if sizes.frame_stack and config.loop.n_step > AHEAD:
        raise ValueError(
            f"n_step is {config.loop.n_step}: with frames stored once it may be {AHEAD} at most"
        )
    if not sizes.frames_on_host:
        return
    if make_host is None or not sizes.frame_stack:
        raise ValueError(
            f"frames_on_host is for environments on the host with stacks of frames, such as "
            f"atari/Pong, not for {config.env}: leave it out"
        )
    if config.loop.inspect:
        raise ValueError(
            "what is replayed can't be looked at where frames are on the host: use --inspect 0"
        )


def _check_network(environment: Environment, agent: Agent) -> None:
    """Refuse a network that does not fit the observations, before a folder is claimed."""
    space, key = environment.action_space, jax.random.key(0)
    discrete = isinstance(space, Discrete)
    action = jnp.zeros((), jnp.int32) if discrete else jnp.zeros(space.size)
    jax.eval_shape(agent.init, key, jax.eval_shape(environment.reset, key)[1], action)
