"""Draw an evaluation episode of a trained policy: `python -m experiments.watch --help`.

The command needs no screen. The policy is the greedy policy of the run's last checkpoint.
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.watch")

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.progress import track

from experiments import environments
from experiments.cli import shared
from experiments.cli.parser import Parser, add_options, read_options
from experiments.environments.host import EnvironmentFailed
from experiments.environments.mujoco import without_screen
from experiments.figures import film
from experiments.figures.film import Film
from experiments.runs import compilation
from experiments.runs.interrupt import Stopped
from experiments.runs.log import show, waiting
from experiments.runs.run_config import RunConfig
from experiments.studies import policy
from experiments.studies.policy import Policy
from jaxreplay.option import Config, option


@dataclasses.dataclass(frozen=True)
class Options(Config):
    """The episode to draw, and the speed of its film."""

    seed: int | None = option(None, "seed of the policy; none: the run's first seed")
    episode_seed: int = option(0, "seed of the environment", at_least=0)
    max_steps: int | None = option(None, "maximum length of the episode", at_least=1)
    fps: int = option(25, "pictures per second", at_least=1, at_most=50)  # viewers' largest rate


class Episode(NamedTuple):
    """An episode in progress.

    Attributes:
      render: returns a picture `[H, W, 3]` uint8 of the current state.
      step: takes one step; returns the reward, and whether the episode has ended.
      close: frees resources.
    """

    render: Callable[[], np.ndarray]
    step: Callable[[], tuple[float, bool]]
    close: Callable[[], None]


def compiled_episode(config: RunConfig, trained: Policy, seed: int) -> Episode:
    """Start an episode of a trained policy in an environment that `jax.jit` compiles."""
    environment, agent = trained.environment, trained.agent
    assert environment is not None
    draw = environments.renderer(config.env, config.env_options)
    reset, steps = jax.random.split(jax.random.key(seed))
    state, obs, time = *jax.jit(environment.reset)(reset), 0
    memory = trained.no_memory(agent, jax.tree.map(lambda x: x[None], obs))

    @jax.jit
    def advance(agent, key, state, obs, memory):
        key_act, key_step = jax.random.split(key)
        seen = jax.tree.map(lambda x: x[None], obs)
        action, memory = trained.act(agent, seen, key_act, memory)
        return *environment.step(key_step, state, action[0]), memory

    def step() -> tuple[float, bool]:
        nonlocal state, obs, time, memory
        key = jax.random.fold_in(steps, time)
        state, obs, out, memory = advance(agent, key, state, obs, memory)
        time += 1
        return float(out.reward), bool(out.terminated | out.truncated)

    return Episode(lambda: draw(jax.device_get(state)), step, lambda: None)


def host_episode(config: RunConfig, trained: Policy, seed: int) -> Episode:
    """Start an episode of an environment on the host, with the settings of evaluations."""
    batch = environments.make_host(config.env, 1, config.env_options, training=False, render=True)
    act, key = jax.jit(trained.act), jax.random.key(seed)
    obs, time = batch.reset(seed), 0
    memory = trained.no_memory(trained.agent, obs)

    def step() -> tuple[float, bool]:
        nonlocal obs, time, memory
        action, memory = act(trained.agent, obs, jax.random.fold_in(key, time), memory)
        obs, out = batch.step(action)
        time += 1
        return float(out.reward[0]), bool(out.terminated[0] | out.truncated[0])

    return Episode(batch.render, step, batch.close)


def play(episode: Episode, limit: int) -> tuple[Film, float, int, bool]:
    """Play and render at most `limit` steps of an episode.

    The last picture shows the state before the last action, since the state after it may already
    belong to the next episode.

    Returns:
      The film, the undiscounted return, the length in agent steps, and whether the episode ended
      within `limit` steps.

    Raises:
      ValueError: the environment cannot be rendered, or a reward is not finite.
    """
    pictures, total, length, over = Film(), 0.0, 0, False
    console = Console(stderr=True)
    steps = track(range(limit), "episode", console=console, disable=not console.is_terminal)
    for length, index in enumerate(steps, 1):
        if pictures.wants(index):
            pictures.add(episode.render())
        reward, over = episode.step()
        total += reward
        if not math.isfinite(reward):
            raise ValueError(f"the reward of step {length} is not finite")
        if over:
            break
    return pictures, total, length, over


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    return shared.run_command(parser, lambda: _watch(args), "give the same command again")


def _watch(args: argparse.Namespace) -> None:
    out = args.out or args.run / "episode.gif"
    options = read_options(args, Options())
    without_screen()
    film.check_path(out)
    named = {kind: getattr(args, kind) for kind in ("env", "agent", "replay")}
    study, config, seed = policy.chosen(args.run, named, options.seed)
    try:
        with compilation.cache_programs(args.compilation_cache):
            with waiting(f"loading the policy of seed {seed}"):
                trained = policy.load(args.run, study, seed)
                start = host_episode if environments.is_host(config.env) else compiled_episode
                episode = start(config, trained, options.episode_seed)
            try:
                limit = min(trained.spec.max_steps, options.max_steps or sys.maxsize)
                pictures, total, length, over = play(episode, limit)
            finally:
                episode.close()
    except EnvironmentFailed as error:
        raise Stopped(str(error), 1) from error
    count = pictures.write(out, options.fps)
    cut = "" if over else f", cut off by --max-steps {options.max_steps}"
    show(
        f"{config.env}, {config.agent} with {config.replay}, seed {seed} after {trained.step:,} "
        f"agent steps: return {total:.6g}, length {length:,}{cut}"
    )
    shown = "every step" if pictures.stride == 1 else f"1 of {pictures.stride} steps"
    size = out.stat().st_size / 1000
    show(f"picture: {out} ({shown}, {count} pictures, {options.fps} per second, {size:,.0f} kB)")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m experiments.watch", description=__doc__,
        epilog="Example: python -m experiments.watch runs/x --seed 1 --out episode.gif",
    )  # fmt: skip
    parser.add_argument("run", type=shared.folder, metavar="RUN", help="folder of a run")
    shared.add_own_modules(parser)
    add_options(parser, Options, group="episode")
    parser.add_argument(
        "--out", type=shared.folder, metavar="FILE",
        help=".gif file [default RUN/episode.gif]",
    )  # fmt: skip
    shared.add_compilation_cache(parser)
    return parser
