"""Draw an evaluation episode of a trained policy: `python -m experiments.watch --help`.

It needs no screen. The policy is that of the run's last checkpoint, and acts greedily.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from experiments import environments
from experiments.analysis import film
from experiments.analysis.film import Film
from experiments.cli.options import Parser
from experiments.cli.shared import add_compilation_cache, agent_name, environment, replay_name
from experiments.environments.host import EnvironmentFailed
from experiments.environments.mujoco import without_screen
from experiments.runs import compilation, interrupt, policy
from experiments.runs.log import say, waiting
from experiments.runs.policy import Policy
from experiments.runs.run_config import RunConfig


class Episode(Protocol):
    """An episode under way."""

    def render(self) -> np.ndarray:
        """Return a picture `[H, W, 3]` uint8 of where it is."""

    def step(self) -> tuple[float, bool]:
        """Act once; return the reward, and whether the episode is over."""

    def close(self) -> None:
        """Free what it holds."""


class CompiledEpisode:
    """An episode of an environment that compiles."""

    def __init__(self, config: RunConfig, trained: Policy, seed: int) -> None:
        self._render = environments.renderer(config.env, config.env_options)
        environment = trained.environment
        reset, self._key = jax.random.split(jax.random.key(seed))
        self._state, self._obs = jax.jit(environment.reset)(reset)
        self._agent, self._time = trained.agent, 0

        @jax.jit
        def advance(agent, key, state, obs):
            key_act, key_step = jax.random.split(key)
            action = trained.greedy(agent, jax.tree.map(lambda x: x[None], obs), key_act)[0]
            return environment.step(key_step, state, action)

        self._advance = advance

    def render(self) -> np.ndarray:
        """Return a picture `[H, W, 3]` uint8 of where it is."""
        return self._render(jax.device_get(self._state))

    def step(self) -> tuple[float, bool]:
        """Act once; return the reward, and whether the episode is over."""
        key = jax.random.fold_in(self._key, self._time)
        self._time += 1
        self._state, self._obs, out = self._advance(self._agent, key, self._state, self._obs)
        return float(out.reward), bool(out.terminated | out.truncated)

    def close(self) -> None:
        """Free nothing."""


class HostEpisode:
    """An episode of an environment that lives on the host, as evaluations see it."""

    def __init__(self, config: RunConfig, trained: Policy, seed: int) -> None:
        self._batch = environments.make_host(
            config.env, 1, config.env_options, training=False, render=True
        )
        self._greedy, self._agent = jax.jit(trained.greedy), trained.agent
        self._key, self._time = jax.random.key(seed), 0
        self._obs = self._batch.reset(seed)

    def render(self) -> np.ndarray:
        """Return a picture `[H, W, 3]` uint8 of where it is."""
        return self._batch.render()

    def step(self) -> tuple[float, bool]:
        """Act once; return the reward, and whether the episode is over."""
        key = jax.random.fold_in(self._key, self._time)
        self._time += 1
        self._obs, out = self._batch.step(self._greedy(self._agent, self._obs, key))
        return float(out.reward[0]), bool(out.terminated[0] | out.truncated[0])

    def close(self) -> None:
        """Close the environment."""
        self._batch.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.fps > 50:
        parser.error(f"--fps {args.fps}: viewers show at most 50 pictures a second")
    out = args.out or args.run / "episode.gif"
    without_screen()
    try:
        film.check_path(out)
        config = policy.read_config(args.run)
        for kind in ("env", "agent", "replay"):
            _check_named(kind, getattr(args, kind), getattr(config, kind))
        seed = policy.check_seed(config, args.seed)
        with compilation.kept(args.compilation_cache):
            with waiting(f"loading the policy of seed {seed}"):
                trained = policy.load(args.run, config, seed)
                episode = _episode(config, trained, args.episode_seed)
            try:
                limit = min(trained.spec.max_steps, args.max_steps or sys.maxsize)
                pictures, total, length, over = play(episode, limit)
            finally:
                episode.close()
        count = pictures.write(out, args.fps)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except EnvironmentFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print("stopped: no picture is written", file=sys.stderr)
        return interrupt.exit_code(error)
    rest = "" if over else f", where --max-steps {args.max_steps} cut the episode off"
    print(
        f"{config.env}, {config.agent} with {config.replay}, seed {seed} after {trained.step:,} "
        f"agent steps: return {total:.6g}, length {length:,}{rest}"
    )
    shown = "every step" if pictures.stride == 1 else f"1 of {pictures.stride} steps"
    size = out.stat().st_size / 1000
    print(f"picture: {out} ({shown}, {count} pictures at {args.fps} a second, {size:,.0f} kB)")
    return 0


def _episode(config: RunConfig, trained: Policy, seed: int) -> Episode:
    make = HostEpisode if environments.is_host(config.env) else CompiledEpisode
    return make(config, trained, seed)


def _check_named(kind: str, named: str | None, own: str) -> None:
    """Refuse the name of another agent or method than the run's."""
    if named is not None and named != own:
        raise ValueError(f"--{kind} is {named}, but the run's {kind} is {own}: leave it out")


def play(episode: Episode, limit: int) -> tuple[Film, float, int, bool]:
    """Play an episode of at most `limit` steps and render it.

    The last picture is of the state in which the last action was taken: what comes after is the
    next episode's.

    Returns:
      The pictures, the undiscounted return, the length in agent steps, and whether the episode
      ended (False: it was cut off at `limit`).

    Raises:
      ValueError: it cannot be rendered, or a reward is not finite.
    """
    pictures, total = Film(), 0.0
    with _Progress(limit) as progress:
        for length in range(limit):
            if pictures.wants(length):
                pictures.add(episode.render())
            reward, over = episode.step()
            total += reward
            if not math.isfinite(reward):
                raise ValueError(f"the reward of step {length + 1} is not finite")
            progress.show(length + 1, total)
            if over:
                break
    return pictures, total, length + 1, over


class _Progress:
    """A bar of steps and return; plain lines, now and then, without a terminal."""

    _PAUSE = 5.0  # seconds between two plain lines

    def __init__(self, limit: int) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("episode"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps, return"),
            TextColumn("{task.fields[result]}"),
        )
        self._bar = Progress(*columns, console=console) if console.is_terminal else None
        self._limit, self._last_line = limit, time.monotonic()

    def __enter__(self) -> "_Progress":
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("episode", total=self._limit, result="0")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, step: int, total: float) -> None:
        """Say how far the episode is, and its return so far."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, result=f"{total:.6g}")
        elif time.monotonic() - self._last_line > self._PAUSE:
            self._last_line = time.monotonic()
            say(f"episode: {step:,} of at most {self._limit:,} steps, return {total:.6g}")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m experiments.watch", description=__doc__,
        epilog="Example: python -m experiments.watch runs/x --seed 1 --out episode.gif",
    )  # fmt: skip
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--seed", type=int, help="whose policy [default the run's first seed]")
    for name, kind in (("env", environment), ("agent", agent_name), ("replay", replay_name)):
        parser.add_argument(
            f"--{name}", type=kind, metavar="NAME",
            help=f"the run's {name}, if it is in a module of your own: only then it is imported",
        )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help=".gif, or .mp4 with imageio[ffmpeg] [default RUN/episode.gif]",
    )  # fmt: skip
    parser.add_argument(
        "--episode-seed", type=_natural, default=0, metavar="INT",
        help="of the environment [default 0]",
    )  # fmt: skip
    parser.add_argument(
        "--max-steps",
        type=_positive,
        metavar="INT",
        help="cut the episode off there [default none]",
    )
    parser.add_argument(
        "--fps", type=_positive, default=25, metavar="INT",
        help="pictures a second, at most 50 [default 25]",
    )  # fmt: skip
    add_compilation_cache(parser)
    return parser


def _natural(text: str, least: int = 0) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {least}")
    return value


def _positive(text: str) -> int:
    return _natural(text, 1)


if __name__ == "__main__":
    sys.exit(main())
