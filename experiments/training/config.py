"""How long and how often a run trains, and the sizes of its replay."""

import dataclasses
import math

from jaxreplay.option import option
from jaxreplay.requirements import check_loop
from jaxreplay.types import Replay


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long and how often: everything that is neither environment, agent nor replay."""

    steps: int = option(50_000, "agent steps in all, over all parallel environments")
    learn_every: int = option(1, "agent steps in each environment between two learning phases")
    updates: int = option(1, "gradient steps in each learning phase")
    warmup: int = option(1_000, "agent steps before learning")
    random_warmup: bool = option(
        True,
        "take uniformly random actions in them; false: the agent's own. Agents that store their "
        "density with each step always take their own",
    )
    n_step: int = option(1, "steps of the return before bootstrapping")
    gamma: float = option(0.99, "discount factor per agent step")
    eval_every: int = option(1_000, "agent steps between two log points")
    eval_epsilon: float = option(
        0.0, "share of random actions in evaluations, of discrete ones; the papers on Atari: 0.001"
    )
    eval_episodes: int = option(10, "greedy episodes at each log point")
    observe_every: int = option(
        500, "agent steps between two reports of training returns to methods that ask for them"
    )
    scale_observations: bool = option(
        False, "show the agent observations in units of their std after the warm-up, centred"
    )
    scale_rewards: bool = option(
        False, "show the agent rewards in units of the stored rewards' root mean square"
    )
    rescale_every: int = option(1_000, "agent steps between two measurements of that")
    inspect: int = option(16, "batches drawn at each log point to see what is replayed; 0 is none")


@dataclasses.dataclass(frozen=True)
class ReplaySizes:
    """The sizes that `make_replay` wants, whatever the method."""

    num_envs: int = option(1, "parallel environments per seed")
    capacity: int | None = option(
        None, "replay slots; none: as many as agent steps, up to a million"
    )
    batch_size: int = option(64, "transitions in each gradient step")
    frame_stack: int | None = option(
        None,
        "observations are stacks of so many frames, each stored once; 0: stored whole; none: as "
        "the environment has it",
    )
    frame_spare: float = option(
        0.04, "places for the last frames of episodes, as a share of the capacity"
    )
    frames_on_host: bool = option(
        False, "keep frames in the host's memory, everything else on the device"
    )

    def resolve(self, steps: int) -> "ReplaySizes":
        """Fill in the default capacity, a multiple of the environments, for a run of `steps`."""
        if self.capacity is not None or self.num_envs < 1:
            return self
        wanted = max(min(steps, 1_000_000), self.batch_size)
        return dataclasses.replace(self, capacity=round_up(wanted, self.num_envs))


def check(config: LoopConfig, replay: Replay) -> None:
    """Refuse what cannot run.

    Raises:
      ValueError: one line that says which option does not fit and what to do.
    """
    if not 0 <= config.eval_epsilon <= 1:
        raise ValueError(f"eval_epsilon is {config.eval_epsilon}: it must lie in [0, 1]")
    if not 0 <= config.gamma <= 1:
        raise ValueError(f"gamma is {config.gamma}: it must lie in [0, 1]")
    check_loop(
        replay,
        n_step=config.n_step,
        learn_every=config.learn_every,
        updates=config.updates,
        warmup=config.warmup,
    )
    lost = (config.n_step - 1) * replay.num_envs  # steps that wait in the n-step window
    if config.inspect < 0:
        raise ValueError(f"inspect is {config.inspect}: give 0 or more batches")
    stored = round_up(config.warmup, replay.num_envs) - lost
    if stored < replay.batch_size:
        raise ValueError(
            f"warmup {config.warmup} leaves {max(stored, 0)} transitions for the first batch of "
            f"{replay.batch_size}: use a warm-up of {replay.batch_size + lost} or more"
        )


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple that is not below `value`."""
    return math.ceil(value / multiple) * multiple
