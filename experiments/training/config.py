"""How long and how often a run trains, and the sizes of its replay."""

import dataclasses
import math
from typing import Literal

from jaxreplay.loops import frames
from jaxreplay.option import Config, option
from jaxreplay.replay import Replay
from jaxreplay.sampler import Sampler
from jaxreplay.storage import Frames, Storage, Transitions


@dataclasses.dataclass(frozen=True)
class LoopConfig(Config):
    """How long and how often: everything that is neither environment, agent nor replay."""

    steps: int = option(
        50_000,
        "agent steps in all, over all parallel environments; rounded up to whole learning phases",
        at_least=1,
    )
    learn_every: int = option(
        1, "agent steps in each environment between two learning phases", at_least=1
    )
    updates: int = option(1, "gradient steps in each learning phase", at_least=1)
    warmup: int = option(1_000, "agent steps before learning", at_least=0)
    random_warmup: bool = option(
        True,
        "take uniformly random actions in them; false: the agent's own, which methods take that "
        "compare densities (refer)",
    )
    n_step: int = option(1, "steps of the return before bootstrapping", at_least=1)
    gamma: float = option(0.99, "discount factor per agent step", at_least=0, at_most=1)
    eval_every: int = option(1_000, "agent steps between two log points", at_least=1)
    eval_epsilon: float = option(
        0.0,
        "share of random actions in evaluations, of discrete ones; the papers on Atari: 0.001",
        at_least=0,
        at_most=1,
    )
    eval_episodes: int = option(10, "greedy episodes at each log point", at_least=1)
    observe_every: int | None = option(
        None,
        "agent steps between two evaluations for methods that learn from them; none: at log points",
        at_least=1,
    )
    offline: bool = option(
        False, "store nothing after the warm-up: the replay is given, and only learning is compared"
    )
    scale_observations: bool = option(
        False, "show the agent observations in units of their std after the warm-up, centred"
    )
    scale_rewards: bool = option(
        False, "show the agent rewards in units of the stored rewards' root mean square"
    )
    rescale_every: int = option(
        1_000,
        "agent steps between two measurements of that",
        at_least=1,
        needs=("scale_observations", "scale_rewards"),
    )
    inspect: int = option(
        16,
        "batches' worth of stored transitions looked at, at each log point, beside what was "
        "replayed; 0: nothing is looked at but the share of the buffer in use",
        at_least=0,
    )


@dataclasses.dataclass(frozen=True)
class ReplaySizes(Config):
    """The sizes of a `Replay`, whatever the method."""

    num_envs: int = option(1, "parallel environments per seed", at_least=1)
    capacity: int | None = option(
        None, "replay slots; none: as many as agent steps, up to a million", at_least=1
    )
    batch_size: int = option(64, "transitions in each gradient step", at_least=1)
    frame_stack: int | None = option(
        None,
        "observations are stacks of so many frames, each stored once; 0: stored whole; none: as "
        "the environment has it",
        at_least=0,
    )
    frame_spare: float = option(
        0.04, "places for the last frames of episodes, as a share of the capacity", at_least=0
    )
    replay_on: Literal["device", "host"] = option(
        "device",
        "whose memory holds what is stored; host: observations and all else that is larger than a "
        "number, or, of frames stored once, the frames; priorities are on the device either way",
    )

    def resolve(self, steps: int) -> "ReplaySizes":
        """Fill in the default capacity, a multiple of the environments, for a run of `steps`."""
        if self.capacity is not None:
            return self
        wanted = max(min(steps, 1_000_000), self.batch_size)
        return dataclasses.replace(self, capacity=round_up(wanted, self.num_envs))

    def make(self, sampler: Sampler) -> Replay:
        """Make the replay of these sizes; a stack of frames that is left open is none.

        Raises:
          ValueError: the sizes do not fit one another, or the capacity is still open (`resolve`).
        """
        if self.capacity is None:
            raise ValueError("capacity is none: give the slots of the replay")
        on_host = self.replay_on == "host"
        storage: Storage = Transitions(on_host=on_host)
        if self.frame_stack:
            # The same `ahead` for every n, so that n does not change the shapes in checkpoints.
            storage = Frames(
                stack=self.frame_stack, spare=self.frame_spare, ahead=frames.AHEAD, on_host=on_host
            )
        return Replay(
            sampler,
            capacity=self.capacity,
            batch_size=self.batch_size,
            num_envs=self.num_envs,
            storage=storage,
        )


def check(config: LoopConfig, replay: Replay) -> None:
    """Refuse what cannot run with a replay.

    Raises:
      ValueError: one line that says which option does not fit and what to do.
    """
    if config.offline and replay.requires.new_steps:
        raise ValueError(
            "offline: this replay method works on what is added all along: leave it out"
        )
    requires, new = replay.requires, config.learn_every * replay.num_envs
    if requires.single_steps and config.n_step != 1:
        raise ValueError(
            f"n_step is {config.n_step}: this replay method follows single steps along their "
            "episode: use n_step 1"
        )
    if requires.all_new and (new != replay.batch_size or config.updates != 1):
        raise ValueError(
            f"this replay method needs one update per {replay.batch_size} new transitions: use "
            f"updates 1 and {replay.batch_size} = learn_every * num_envs (now {new})"
        )
    if requires.single_steps and config.warmup > replay.capacity:
        raise ValueError(
            f"warmup {config.warmup} is more than the capacity {replay.capacity}: use a shorter "
            "warm-up or a larger capacity"
        )
    lost = (config.n_step - 1) * replay.num_envs  # steps that wait in the n-step window
    stored = round_up(config.warmup, replay.num_envs) - lost
    if stored < replay.batch_size:
        raise ValueError(
            f"warmup {config.warmup} leaves {max(stored, 0)} transitions for the first batch of "
            f"{replay.batch_size}: use a warm-up of {replay.batch_size + lost} or more"
        )


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple that is not below `value`."""
    return math.ceil(value / multiple) * multiple


def remarks(replay: Replay, environment: str, max_steps: int) -> tuple[str, ...]:
    """Return what a user should know before a run that is possible, but may surprise.

    Args:
      replay: what the loop drives.
      environment: its name.
      max_steps: agent steps after which an episode is truncated.
    """
    if replay.requires.whole_episodes and max_steps > replay.capacity:
        return (
            f"{environment} may have episodes of {max_steps:,} steps, more than "
            f"the {replay.capacity:,} to be remembered: such an episode is kept while it is the "
            "only one",
        )
    return ()
