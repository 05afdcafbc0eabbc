"""What a run is: the command line's source of truth, as frozen dataclasses."""

import dataclasses
import importlib.util
import math
from typing import Any

from jaxreplay.option import option
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
        return dataclasses.replace(self, capacity=_up(wanted, self.num_envs))


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """What can be said of any environment besides its name; families add to it."""

    max_steps: int | None = option(
        None, "agent steps until an episode is truncated; none: the environment's own limit"
    )

    def kwargs(self) -> dict[str, Any]:
        """Return what was set, as keyword arguments for `environments.make` or `make_host`."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


@dataclasses.dataclass(frozen=True)
class OutputConfig:
    """What a run writes; no number depends on it."""

    checkpoint_every: int = option(10, "log points between two checkpoints")
    tensorboard: bool = option(True, "write TensorBoard events")
    wandb: bool = option(False, "log to Weights & Biases (WANDB_MODE=offline works)")
    threshold: float | None = option(
        None, "return that counts as solved; none: the environment's own, if it has one"
    )

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1:
            raise ValueError(f"checkpoint_every is {self.checkpoint_every}: it must be at least 1")
        if self.wandb and importlib.util.find_spec("wandb") is None:
            raise ValueError(
                "Weights & Biases is not installed: pip install wandb, or leave out --wandb"
            )


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A LoopConfig in whole numbers of blocks; a block is some steps and then some updates."""

    warmup_rows: int  # steps of each environment before learning
    block_rows: int  # steps of each environment in a block
    warmup_steps: int  # agent steps of the warm-up
    block_steps: int  # agent steps of a block
    log_points: tuple[int, ...]  # blocks before each log point
    steps: tuple[int, ...]  # agent steps at each log point
    updates: int  # gradient steps in all


def check(config: LoopConfig, replay: Replay) -> None:
    """Refuse what cannot run.

    Raises:
      ValueError: one line that says which option does not fit and what to do.
    """
    if not 0 <= config.eval_epsilon <= 1:
        raise ValueError(f"eval_epsilon is {config.eval_epsilon}: it must lie in [0, 1]")
    if not 0 <= config.gamma <= 1:
        raise ValueError(f"gamma is {config.gamma}: it must lie in [0, 1]")
    if "single_steps" in replay.demands and config.n_step != 1:
        raise ValueError(
            f"n_step is {config.n_step}: this replay method follows single steps along their "
            "episode: use n_step 1"
        )
    new = config.learn_every * replay.num_envs
    if "all_new" in replay.demands and (new != replay.batch_size or config.updates != 1):
        raise ValueError(
            f"this replay method wants one update of {replay.batch_size} transitions, all new: use "
            f"--updates 1 and {replay.batch_size} = learn_every * num_envs (now {new})"
        )
    if "single_steps" in replay.demands and config.warmup > replay.capacity:
        raise ValueError(
            f"warmup {config.warmup} is more than the {replay.capacity} steps that the replay "
            "remembers: use a shorter warm-up or a larger capacity"
        )
    lost = (config.n_step - 1) * replay.num_envs  # steps that wait in the n-step window
    if config.inspect < 0:
        raise ValueError(f"inspect is {config.inspect}: give 0 or more batches")
    stored = _up(config.warmup, replay.num_envs) - lost
    if stored < replay.batch_size:
        raise ValueError(
            f"warmup {config.warmup} leaves {max(stored, 0)} transitions for the first batch of "
            f"{replay.batch_size}: use a warm-up of {replay.batch_size + lost} or more"
        )


def schedule(config: LoopConfig, num_envs: int) -> Schedule:
    """Lay out a run: log points at multiples of `eval_every`, and at the end.

    Steps are rounded up to whole blocks of `learn_every` steps in each environment.

    Raises:
      ValueError: a count is below 1, or there is nothing left after the warm-up.
    """
    for name in ("steps", "learn_every", "updates", "n_step", "eval_every", "eval_episodes",
        "observe_every", "rescale_every",
    ):  # fmt: skip
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}: it must be at least 1")
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}: it must be at least 1")
    if config.steps <= _up(config.warmup, num_envs):
        raise ValueError(
            f"steps {config.steps} end within the warm-up of {config.warmup}: use more steps"
        )
    block_steps = config.learn_every * num_envs
    warmup_rows = math.ceil(config.warmup / num_envs)
    warmup = warmup_rows * num_envs
    total = math.ceil((config.steps - warmup) / block_steps)
    ends = []
    for step in range(config.eval_every, config.steps + config.eval_every, config.eval_every):
        blocks = min(math.ceil((step - warmup) / block_steps), total)
        if blocks > (ends[-1] if ends else 0):
            ends.append(blocks)
    starts = [0, *ends[:-1]]
    return Schedule(
        warmup_rows=warmup_rows,
        block_rows=config.learn_every,
        warmup_steps=warmup,
        block_steps=block_steps,
        log_points=tuple(end - start for start, end in zip(starts, ends, strict=True)),
        steps=tuple(warmup + end * block_steps for end in ends),
        updates=total * config.updates,
    )


def _up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple
