"""Whole training loops to time: this project's, and those of peers at the same sizes."""

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks import gemm, peer_loops, peers
from experiments.benchmarks.compiled import compile_run
from experiments.benchmarks.timing import Run
from experiments.installation.commands import install_package
from experiments.runs.assembly import assemble, build
from experiments.runs.log import say
from experiments.runs.run_config import RunConfig, defaults
from experiments.training.config import LoopConfig, ReplaySizes
from experiments.training.loop import Program, make_program
from jaxreplay.types import Array, Sample

_WARMUP = 1_000  # agent steps


class Case(NamedTuple):
    """An agent and a task."""

    agent: str
    env: str
    host_env: str  # the same task in gymnasium, for peers that step it on the host
    batch_size: int
    hidden: tuple[int, ...]
    options: Mapping[str, Any] = MappingProxyType({})  # of our agent, as its peers have them


class Loop(NamedTuple):
    """A training loop to time."""

    run: Run
    compiling: float | None = None  # processor seconds to compile it, tracing included
    text: str = ""  # its optimised HLO
    steps: int | None = None  # it does multiples of these steps alone


# Peers' DQN has neither double Q-learning nor a limit to its gradients.
_PLAIN = MappingProxyType({"double": False, "max_grad_norm": 0.0})
CASES: Mapping[str, Case] = MappingProxyType(
    {
        "dqn": Case("dqn", "gymnax/CartPole-v1", "CartPole-v1", 128, (64, 64), _PLAIN),
        "td3": Case("td3", "gymnax/Pendulum-v1", "Pendulum-v1", 256, (256, 256)),
        "sac": Case("sac", "gymnax/Pendulum-v1", "Pendulum-v1", 256, (256, 256)),
    }
)


def run_config(case: Case, replay: str, seeds: int, capacity: int) -> RunConfig:
    """Return a run with one environment per seed and one update per step, and no inspection."""
    config = defaults(case.env, case.agent, replay)
    loop = LoopConfig(
        steps=1_000_000, warmup=_WARMUP, eval_every=1_000_000, eval_episodes=1, inspect=0
    )
    options = dataclasses.replace(config.agent_options, hidden=case.hidden, **case.options)
    sizes = ReplaySizes(num_envs=1, capacity=capacity, batch_size=case.batch_size)
    return dataclasses.replace(config, seeds=seeds, agent_options=options, sizes=sizes, loop=loop)


def ours(case: Case, replay: str, seeds: int, capacity: int) -> Loop:
    """Return our training loop with one of our replay methods, all seeds in one program."""
    config = run_config(case, replay, seeds, capacity)
    _, environment, agent, made = assemble(config)
    return _steps(make_program(environment, agent, made, config.loop), seeds)


def as_run(
    case: Case,
    replay: str,
    seeds: int,
    capacity: int,
    replay_on: Literal["device", "host"] = "device",
) -> Loop:
    """Return the same as a run lays it out: several programs, over all cores."""
    config = run_config(case, replay, seeds, capacity)
    sizes = dataclasses.replace(config.sizes, replay_on=replay_on)
    training = build(dataclasses.replace(config, sizes=sizes))
    return Loop(_run_of(training.init(), training.chunk))


def around_peers(
    case: Case, seeds: int, capacity: int, only: str = ""
) -> tuple[dict[str, Loop], dict[str, str]]:
    """Return our training loop around flashbax's buffers, and the packages missing for it.

    Prioritised buffers get PER's objective, the uniform one that of plain replay. The one with a
    barrier is left out: the one with a fence does the same and more.

    Args:
      case: agent and task.
      seeds: number of seeds, all in one program.
      capacity: slots per seed.
      only: leave out peers without this text in their names.
    """
    found = peers.find(["flashbax"])
    runs = {}
    for peer in found.peers:
        if peer.name.endswith("barrier") or only not in peer.name:
            continue
        config = run_config(case, "per" if peer.prioritised else "uniform", seeds, capacity)
        _, environment, agent, _ = assemble(config)
        replay = peer.replay(capacity, case.batch_size)
        program = make_program(environment, agent, replay, config.loop)
        runs[peer.name] = _steps(program, seeds)
    return runs, found.missing


def sbx(case: Case, capacity: int) -> tuple[dict[str, Loop], dict[str, str]]:
    """Return sbx's training loop (uniform replay, one seed), and the packages missing for it."""
    hint = f"{install_package('sbx-rl')} (brings PyTorch, by default with gigabytes of CUDA)"
    if importlib.util.find_spec("sbx") is None:
        return {}, {"sbx": f"not installed: {hint}"}
    try:
        import sbx as package
    except (ImportError, OSError, AttributeError) as error:
        return {}, {"sbx": f"installed, but does not work here: {' '.join(str(error).split())}"}
    model = getattr(package, case.agent.upper())(
        "MlpPolicy",
        case.host_env,
        batch_size=case.batch_size,
        buffer_size=capacity,
        learning_starts=_WARMUP,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": list(case.hidden)},
        seed=0,
    )
    model.learn(_WARMUP + 1)

    def run(count: int) -> float:
        begin = time.perf_counter()
        model.learn(count, reset_num_timesteps=False)
        return time.perf_counter() - begin

    return {"sbx": Loop(run)}, {}


def of_other_projects(
    case: Case, seeds: int, capacity: int, steps: int, folders: Mapping[str, str | None]
) -> tuple[dict[str, Loop], dict[str, str], dict[str, str]]:
    """Return peers' own loops written in JAX, what is missing for them, and their versions.

    Args:
      case: agent and task.
      seeds: number of seeds, all in one program.
      capacity: slots per seed.
      steps: learning steps that a call takes.
      folders: checkouts by the peer's name; None: as installed, if it can be.
    """
    options = run_config(case, "uniform", seeds, capacity).agent_options
    setting = peer_loops.Setting(
        case.agent,
        case.host_env,
        case.batch_size,
        case.hidden,
        capacity,
        learning_rate=getattr(options, "learning_rate", None) or options.critic_learning_rate,
        tau=options.tau,
    )
    steps += steps % 2  # TD3's actor learns in every other one
    loops, missing, versions = {}, {}, {}
    for name, folder in folders.items():
        try:
            found, version = peer_loops.variants(name, folder and Path(folder), setting)
        except peer_loops.Missing as error:
            missing[name] = str(error)
            continue
        versions[name] = version
        for label, variant in found.items():
            if seeds > 1 or not variant.several:
                say(f"  compiling {label}")
                whole = peer_loops.whole(variant, seeds, steps, setting)
                same = [other for other, one in loops.items() if one.text == whole.text]
                if same:  # then one of them was not made as it says
                    raise RuntimeError(f"{label} compiled to the very program of {same[0]}")
                loops[label] = Loop(whole.run, whole.seconds, whole.text, steps)
    return loops, missing, versions


def step_products(case: Case) -> list[gemm.Product]:
    """Return the matrix products of one training step: acting once, and one update."""
    config = run_config(case, "uniform", 1, 10 * case.batch_size)
    _, environment, agent, replay = assemble(config)
    program = make_program(environment, agent, replay, config.loop)
    state = jax.eval_shape(program.init, jax.random.key(0))

    def step(agent_state: Any, obs: Array, batch: Sample, key: Array) -> Any:
        return agent.act(agent_state, obs, key), agent.update(agent_state, batch, key)

    batch = jax.eval_shape(replay.sample, state.replay, jax.random.key(0))
    # TD3 updates its actor only in some of the updates.
    share = 1 / getattr(config.agent_options, "policy_delay", 1)
    return gemm.products(step, state.agent, state.obs, batch, jax.random.key(0), share=share)


def _steps(program: Program, seeds: int) -> Loop:
    """Return a loop of steps in every seed."""
    made = compile_run(program, seeds)
    state = made["warm-up"].run(jax.vmap(jax.random.key)(jnp.arange(seeds)))
    chunk = made["training"].run
    seconds = sum(one.tracing + one.compiling for one in made.values())
    run = _run_of(state, lambda state, blocks: chunk(state, jnp.int32(blocks)))
    return Loop(run, seconds, made["training"].text)


def _run_of(state: Any, chunk: Callable[[Any, int], tuple[Any, Any]]) -> Run:
    """Return a `Run` of steps in every seed, minus the evaluation that ends a chunk."""

    def timed(blocks: int) -> float:
        nonlocal state
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(chunk(state, blocks))
        return time.perf_counter() - begin

    def run(count: int) -> float:
        total = timed(count)
        # A chunk of no blocks, from the state reached, is the same evaluation alone.
        return max(total - timed(0), 1e-9)

    return run
