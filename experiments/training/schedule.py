"""The schedule of a run in blocks: agent steps, then gradient updates."""

import dataclasses
import math

from experiments.training.config import LoopConfig, round_up

_MAX_LOG_POINTS = 1_000_000
_MAX_COUNT = 2**31 - 1  # largest value of an int32 step counter


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The numbers of steps of a LoopConfig, rounded to whole blocks of agent steps and updates."""

    warmup_rows: int  # agent steps in each environment before learning
    warmup_steps: int  # agent steps of the warm-up
    block_steps: int  # agent steps of a block
    log_points: tuple[int, ...]  # blocks from the previous log point (or the warm-up) to each
    steps: tuple[int, ...]  # agent steps at each log point
    updates: int  # gradient updates in total

    def step_at(self, log_points: int, blocks: int) -> int:
        """Return the agent steps after `log_points` log points and `blocks` further blocks."""
        start = self.steps[log_points - 1] if log_points else self.warmup_steps
        return start + blocks * self.block_steps


def schedule(config: LoopConfig, num_envs: int) -> Schedule:
    """Return the schedule of a run, with log points at multiples of `eval_every` and at the end.

    Steps are rounded up to whole blocks of `learn_every` steps in each environment.

    Raises:
      ValueError: no learning phase after the warm-up, or too many log points, steps or updates.
    """
    if config.steps <= round_up(config.warmup, num_envs):
        raise ValueError(
            f"steps {config.steps} end within the warm-up of {config.warmup}: use more steps, "
            "or a smaller warmup (--warmup)"
        )
    if config.steps / config.eval_every > _MAX_LOG_POINTS:
        raise ValueError(
            f"eval_every {config.eval_every} makes {config.steps // config.eval_every:,} log "
            f"points in {config.steps:,} steps: use a larger eval_every"
        )
    block_steps = config.learn_every * num_envs
    warmup_rows = math.ceil(config.warmup / num_envs)
    warmup = warmup_rows * num_envs
    if config.steps - warmup < block_steps:
        raise ValueError(
            f"learn_every {config.learn_every} ends the first learning phase at agent step "
            f"{warmup + block_steps:,}, after the last of {config.steps:,} steps: use a smaller "
            "learn_every, or more steps"
        )
    total = math.ceil((config.steps - warmup) / block_steps)
    for name, value, unit, count in (
        ("learn_every", config.learn_every, "agent steps", warmup + total * block_steps),
        ("updates", config.updates, "gradient updates", total * config.updates),
    ):
        if count > _MAX_COUNT:
            raise ValueError(
                f"{name} {value} makes {count:,} {unit} in all, more than {_MAX_COUNT:,}: use a "
                f"smaller {name}, or fewer steps"
            )
    ends = []
    for step in range(config.eval_every, config.steps + config.eval_every, config.eval_every):
        blocks = min(math.ceil((step - warmup) / block_steps), total)
        if blocks > (ends[-1] if ends else 0):
            ends.append(blocks)
    return Schedule(
        warmup_rows=warmup_rows,
        warmup_steps=warmup,
        block_steps=block_steps,
        log_points=tuple(end - start for start, end in zip([0, *ends], ends, strict=False)),
        steps=tuple(warmup + end * block_steps for end in ends),
        updates=total * config.updates,
    )
