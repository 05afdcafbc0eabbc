"""Options of the training loop and sizes of the replay."""

import dataclasses
import math
from typing import Literal

from experiments.training.demos import Recorded, TransitionSpec, own_part, with_demos
from jaxreplay import devices
from jaxreplay.mixing import Mixed
from jaxreplay.option import Config, option
from jaxreplay.replay import Replay
from jaxreplay.sampler import Sampler
from jaxreplay.storage import Frames, Storage, Transitions
from jaxreplay.traced import is_zero

FRAMES_AHEAD = 255  # largest n of n-step returns with frames stored once


@dataclasses.dataclass(frozen=True)
class LoopConfig(Config):
    """Lengths and intervals of a run, and options that concern neither environment nor agent."""

    steps: int = option(
        50_000,
        "agent steps in total, over all parallel environments; rounded up to whole learning phases",
        at_least=1,
    )
    learn_every: int = option(
        1, "agent steps in each environment between two learning phases", at_least=1
    )
    updates: int = option(1, "gradient steps in each learning phase", at_least=1)
    warmup: int = option(1_000, "agent steps before learning", at_least=0)
    random_warmup: bool = option(
        True,
        "uniformly random actions in the warm-up; false: the agent's own actions, as required by "
        "methods that compare densities (refer)",
    )
    n_step: int = option(1, "steps of the return before bootstrapping", at_least=1)
    gamma: float = option(0.99, "discount factor per agent step", at_least=0, at_most=1)
    eval_every: int = option(1_000, "agent steps between two log points", at_least=1)
    eval_epsilon: float = option(
        0.0,
        "share of random actions in evaluations with discrete actions; 0.001 in papers on Atari",
        at_least=0,
        at_most=1,
    )
    eval_episodes: int = option(10, "greedy episodes at each log point", at_least=1)
    observe_every: int | None = option(
        None,
        "agent steps between the evaluations from which some replay methods learn; none: those at "
        "log points",
        at_least=1,
    )
    offline: bool = option(
        False, "store no steps after the warm-up, to compare learning on a fixed replay"
    )
    scale_observations: bool = option(
        False, "standardise observations by their mean and std after the warm-up"
    )
    scale_rewards: bool = option(
        False, "divide rewards by the root mean square of the stored rewards"
    )
    reward_noise: float = option(
        0.0,
        "std of normal noise added to the reward of each stored step; logged and evaluated returns "
        "have none",
        at_least=0,
    )
    reward_noise_at: Literal["steps", "failures"] = option(
        "steps",
        "where rewards get noise: at all steps, or at failures, which are steps that terminate an "
        "episode with a reward of at most 0",
        needs=("reward_noise",),
    )
    rescale_every: int = option(
        1_000,
        "agent steps between measurements of the rewards' root mean square",
        at_least=1,
        needs=("scale_observations", "scale_rewards"),
    )
    mesh: int = option(
        1,
        "number of devices over which each run shards its environments, replay and batches",
        at_least=1,
    )
    count_draws: bool = option(
        False, "count how often each stored transition is drawn, for experiments.microscope"
    )
    inspect: int = option(
        16,
        "batches of stored transitions to compare with the replayed ones at each log point; 0: no "
        "comparison, and only methods with known draw probabilities log the share of the buffer "
        "in use",
        at_least=0,
    )


@dataclasses.dataclass(frozen=True)
class ReplaySizes(Config):
    """Sizes and storage of a `Replay`."""

    num_envs: int = option(1, "parallel environments per seed", at_least=1)
    capacity: int | None = option(
        None, "replay slots; none: one per agent step, up to a million", at_least=1
    )
    batch_size: int = option(64, "transitions in each gradient step", at_least=1)
    frame_stack: int | None = option(
        None,
        "frames in an observation, each stored once; 0: store whole observations; none: the stack "
        "of the environment",
        at_least=0,
    )
    frame_spare: float = option(
        0.04, "space for the last frames of episodes, as a share of the capacity", at_least=0
    )
    demos: str | None = option(
        None, "file of demonstrations, written by jaxreplay.save; every batch has a share of them"
    )
    demos_share: float = option(
        0.5,
        "share of demonstrations in each batch; 1: learn offline, from the file only",
        "Ball et al. 2023: 0.5",
        above=0,
        at_most=1,
        needs=("demos",),
    )

    def resolve(self, steps: int) -> "ReplaySizes":
        """Return the sizes with a capacity; a given capacity does not change.

        The default is `steps`, but at most a million and at least a batch, rounded up to a multiple
        of `num_envs`.
        """
        if self.capacity is not None:
            return self
        capacity = max(min(steps, 1_000_000), self.batch_size)
        return dataclasses.replace(self, capacity=round_up(capacity, self.num_envs))

    def make(
        self, sampler: Sampler, candidates: int = 1, task: TransitionSpec | None = None
    ) -> Replay | Mixed:
        """Make the replay; a `frame_stack` of None stores whole observations.

        Args:
          sampler: sampler of the replay.
          candidates: number of transitions drawn per transition of a gradient step.
          task: properties that demonstrations must share; None does not check them.

        Raises:
          ValueError: the sizes do not fit each other, or the capacity is None (see `resolve`).
        """
        if self.capacity is None:
            raise ValueError("capacity is none: give the number of slots of the replay")
        storage: Storage = Transitions()
        if self.frame_stack:
            # One value of `ahead` for every n, so that shapes in checkpoints do not depend on n.
            storage = Frames(stack=self.frame_stack, spare=self.frame_spare, ahead=FRAMES_AHEAD)
        replay = Replay(
            sampler,
            capacity=self.capacity,
            batch_size=self.batch_size * candidates,
            num_envs=self.num_envs,
            storage=storage,
        )
        if self.demos is None:
            if self.demos_share == 1:
                raise ValueError("demos_share 1 learns only from a file: give --demos FILE")
            return replay
        if candidates > 1 and self.demos_share < 1:
            raise ValueError(
                "--demos fixes the share of demonstrations in every batch, but this replay method "
                "learns from only some of the drawn transitions: leave out --demos, or use another "
                "--replay"
            )
        return with_demos(replay, self.demos, self.demos_share, task)


def check(config: LoopConfig, replay: Replay) -> None:
    """Check a config against the requirements of a replay.

    Raises:
      ValueError: an option does not fit; the message names it and the remedy.
    """
    if config.offline and replay.requires.new_steps:
        raise ValueError(
            "offline adds no transitions during training, but this replay method needs new ones: "
            "leave out offline"
        )
    requires, new = replay.requires, config.learn_every * replay.num_envs
    if requires.goals and not is_zero(config.reward_noise):
        raise ValueError(
            "reward_noise: this replay method computes rewards for other goals, and these have no "
            "noise: leave out reward_noise"
        )
    if requires.single_steps and config.n_step != 1:
        raise ValueError(
            f"n_step is {config.n_step}: this replay method follows single steps along their "
            "episode: use n_step 1"
        )
    if requires.refresh and isinstance(replay, Mixed):
        raise ValueError(
            "--demos makes a mixture of two replays, but this replay method recomputes all "
            "priorities of a single one: leave out --demos, or use another --replay, such as per"
        )
    if config.count_draws and config.mesh > 1:
        raise ValueError(
            f"count_draws works only on one device, and mesh is {config.mesh}: leave out "
            "count_draws, or use mesh 1"
        )
    if isinstance(replay, Recorded):  # filled before the first step
        return
    if requires.all_new and (new != replay.batch_size or config.updates != 1):
        raise ValueError(
            f"this replay method needs one update per {replay.batch_size} new transitions: use "
            f"updates 1 and {replay.batch_size} = learn_every * num_envs (now {new})"
        )
    capacity = own_part(replay, None)[0].capacity
    if requires.single_steps and config.warmup > capacity:
        raise ValueError(
            f"warmup {config.warmup} is more than the capacity {capacity}: use a shorter "
            "warm-up or a larger capacity"
        )
    lost = (config.n_step - 1) * replay.num_envs  # steps in the n-step window
    stored = round_up(config.warmup, replay.num_envs) - lost
    if stored < replay.batch_size:
        raise ValueError(
            f"warmup {config.warmup} leaves {max(stored, 0)} transitions for the first batch of "
            f"{replay.batch_size}: use a warm-up of {replay.batch_size + lost} or more"
        )


def divide(replay: Replay, count: int) -> Replay:
    """Return a replay with sizes divided by `count`, which each of `count` devices has.

    With one device, return `replay` unchanged.

    Raises:
      ValueError: the replay cannot be sharded, or one of its sizes is not a multiple of `count`.
    """
    if count == 1:
        return replay
    if type(replay) is not Replay:
        raise ValueError(
            f"mesh {count}: a mixture with demonstrations cannot be sharded over devices: leave "
            "out --demos, or use mesh 1"
        )
    sizes = {name: getattr(replay, name) for name in ("num_envs", "batch_size", "capacity")}
    for name, size in sizes.items():  # the capacity is a multiple of num_envs
        if size % count:
            raise ValueError(
                f"{name} {size} is not a multiple of mesh {count}, the number of devices: use "
                f"{round_up(size, count)}"
            )
    parts = {name: size // count for name, size in sizes.items()}
    try:
        return dataclasses.replace(replay, **parts, axis_name=devices.AXIS)
    except ValueError as error:
        raise ValueError(f"mesh {count}: {error}") from None


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple that is at least `value`."""
    return math.ceil(value / multiple) * multiple
