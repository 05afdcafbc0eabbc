"""Where a run goes on, and whether its files are still what it wrote."""

from pathlib import Path
from typing import Any, NamedTuple

from experiments.analysis import kinds
from experiments.runs import checkpoint, log, same_config
from experiments.runs.run_config import RunConfig
from experiments.training.schedule import Schedule
from experiments.training.seeds import Run


class Progress(NamedTuple):
    """How far a run had come when a checkpoint was saved."""

    log_points: int  # log points passed
    blocks: int = 0  # blocks since the last of them


class Resumed(NamedTuple):
    """Where a run goes on."""

    progress: Progress = Progress(0)
    metrics: log.Written = log.Written()  # of `metrics.csv`
    timing: log.Written = log.Written()  # of `timing.csv`
    state: Any = None  # a LoopState; None: from the beginning, or nothing is left to do


BEGINNING = Resumed()
_META = {
    "config": kinds.named(kinds.anything), "progress": kinds.many(kinds.whole, 2),
    "metrics": kinds.many(kinds.whole, 2),
}  # fmt: skip


def read_meta(folder: Path, step: int | None = None) -> dict[str, Any]:
    """Return what a checkpoint of a run (the newest if `step` is None) says besides its state.

    Raises:
      ValueError: as `checkpoint.read_meta`; Damaged, if a field is missing or of the wrong kind.
    """
    meta = checkpoint.read_meta(folder, step)
    try:
        kinds.check(f"the checkpoint in {folder}", meta, _META)
    except ValueError as error:
        raise checkpoint.Damaged(str(error)) from None
    return meta


def check_books(run: Run, config: RunConfig, out: Path) -> Resumed:
    """Compare what a run's last checkpoint says of its files with them; no array is read.

    Returns:
      Where it goes on, without the state.

    Raises:
      ValueError: one line: the run's files are not what it wrote, or it has ended and its
        checkpoints are gone; Damaged, if the checkpoint itself can't be read.
    """
    folder = out / "checkpoints"
    if checkpoint.latest(folder) is None:
        if (out / "summary.json").is_file():
            raise ValueError(
                f"the run in {out} has ended, and its checkpoints are gone: nothing to resume"
            )
        return BEGINNING
    meta = read_meta(folder)
    same_config.check(meta["config"], config.to_json(), out)
    progress, metrics = Progress(*meta["progress"]), log.Written(*meta["metrics"])
    log.check_written(out / "metrics.csv", metrics)
    steps = run.schedule.steps[: progress.log_points]
    return Resumed(progress, metrics, log.written_timing(out / "timing.csv", steps))


def check_name(folder: Path, progress: Progress, plan: Schedule) -> None:
    """Refuse a last checkpoint that is not named after the step that it holds.

    Raises:
      ValueError: one line with both.
    """
    named, held = checkpoint.latest(folder), plan.step_at(*progress)
    if held != named:
        raise ValueError(
            f"the checkpoint of step {named} in {folder} holds step {held}: rename it "
            f"{checkpoint.name_of(held)}"
        )


def read(run: Run, config: RunConfig, out: Path) -> Resumed:
    """Read where a run was at its last checkpoint, or at the one before if that is damaged.

    Raises:
      ValueError: as `check_books`; or every checkpoint is damaged.
    """
    folder = out / "checkpoints"
    latest = checkpoint.latest(folder)
    try:
        resumed = check_books(run, config, out)
        if latest is None and (out / "metrics.csv").is_file():
            log.say(f"{out} has no checkpoint: it starts over, and its metrics.csv is written anew")
        if latest is None:
            return resumed
        if resumed.progress.log_points < len(run.schedule.steps):
            resumed = resumed._replace(state=checkpoint.load(folder, run.like()))
        check_name(folder, resumed.progress, run.schedule)
        return resumed
    except checkpoint.Damaged as error:
        if latest is None or checkpoint.latest(folder, before=latest) is None:
            raise ValueError(
                f"{error}, and there is none before it: restore it, or start a new run"
            ) from None
        aside = checkpoint.set_aside(folder, latest)
        log.say(f"{error}: going on from the one before; it is kept as {aside.name}")
        return read(run, config, out)
