"""A run in whole numbers of blocks: some agent steps, and then some gradient updates."""

import dataclasses
import math

from experiments.training.config import LoopConfig, round_up

_MOST = 1_000_000  # log points
_LARGEST = 2**31 - 1  # what counters hold


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A LoopConfig in whole numbers of blocks; a block is agent steps, then gradient updates."""

    warmup_rows: int  # agent steps in each environment before learning
    warmup_steps: int  # agent steps of the warm-up
    block_steps: int  # agent steps of a block
    log_points: tuple[int, ...]  # blocks before each log point
    steps: tuple[int, ...]  # agent steps at each log point
    updates: int  # gradient updates in all

    def step_at(self, log_points: int, blocks: int) -> int:
        """Return the agent steps after some log points, and blocks since the last of them."""
        start = self.steps[log_points - 1] if log_points else self.warmup_steps
        return start + blocks * self.block_steps


def schedule(config: LoopConfig, num_envs: int) -> Schedule:
    """Lay out a run: log points at multiples of `eval_every`, and at the end.

    Steps are rounded up to whole blocks of `learn_every` steps in each environment.

    Raises:
      ValueError: there is nothing left after the warm-up, or there are too many log points, steps
        or updates.
    """
    if config.steps <= round_up(config.warmup, num_envs):
        raise ValueError(
            f"steps {config.steps} end within the warm-up of {config.warmup}: use more steps"
        )
    if config.steps / config.eval_every > _MOST:
        raise ValueError(
            f"eval_every {config.eval_every} makes {config.steps // config.eval_every:,} log "
            f"points of {config.steps:,} steps: use a larger one"
        )
    block_steps = config.learn_every * num_envs
    warmup_rows = math.ceil(config.warmup / num_envs)
    warmup = warmup_rows * num_envs
    total = math.ceil((config.steps - warmup) / block_steps)
    for name, value, what, count in (
        ("learn_every", config.learn_every, "agent steps", warmup + total * block_steps),
        ("updates", config.updates, "gradient updates", total * config.updates),
    ):
        if count > _LARGEST:
            raise ValueError(
                f"{name} {value} makes {count:,} {what} in all, more than {_LARGEST:,}: use a "
                "smaller one, or fewer steps"
            )
    ends = []
    for step in range(config.eval_every, config.steps + config.eval_every, config.eval_every):
        blocks = min(math.ceil((step - warmup) / block_steps), total)
        if blocks > (ends[-1] if ends else 0):
            ends.append(blocks)
    starts = [0, *ends[:-1]]
    return Schedule(
        warmup_rows=warmup_rows,
        warmup_steps=warmup,
        block_steps=block_steps,
        log_points=tuple(end - start for start, end in zip(starts, ends, strict=True)),
        steps=tuple(warmup + end * block_steps for end in ends),
        updates=total * config.updates,
    )
