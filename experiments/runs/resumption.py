"""Where a resumed run continues, after checking that its files are as it wrote them."""

from pathlib import Path
from typing import Any, NamedTuple

from experiments.runs import checkpoint, log, run_config, tables
from experiments.runs.run_config import RunConfig
from experiments.runs.tables import Written
from experiments.storage import kinds
from experiments.training.seeds import Run


class Progress(NamedTuple):
    """Progress of a run at a checkpoint."""

    log_points: int  # log points passed
    blocks: int = 0  # blocks since the last of them


class Resumed(NamedTuple):
    """Where a run continues; by default at the beginning."""

    progress: Progress = Progress(0)
    metrics: Written = Written()  # of `metrics.csv`
    timing: Written = Written()  # of `timing.csv`
    state: Any = None  # a LoopState; None at the beginning, or if nothing is left to do


_META = {
    "config": kinds.named(kinds.anything), "progress": kinds.many(kinds.whole, 2),
    "metrics": kinds.many(kinds.whole, 2),
}  # fmt: skip


def read_meta(folder: Path, step: int | None = None) -> dict[str, Any]:
    """Return the metadata of a run's checkpoint, of the newest if `step` is None.

    Raises:
      ValueError: as `checkpoint.read_meta`; Damaged, if a field is missing or of the wrong type.
    """
    meta = checkpoint.read_meta(folder, step)
    try:
        kinds.check(f"the checkpoint in {folder}", meta, _META)
    except ValueError as error:
        raise checkpoint.Damaged(str(error)) from None
    return meta


def read(run: Run, config: RunConfig, out: Path) -> Resumed:
    """Read where a run continues: at its last checkpoint, or the previous one if that is damaged.

    Raises:
      ValueError: a file was edited, the run has ended and its checkpoints are gone, or every
        checkpoint is damaged.
    """
    folder = out / "checkpoints"
    latest = checkpoint.latest(folder)
    if latest is None:
        if (out / "summary.json").is_file():
            raise ValueError(
                f"the run in {out} has ended, and its checkpoints are gone: nothing to resume"
            )
        if (out / "metrics.csv").is_file():
            log.say(f"{out} has no checkpoint: the run starts over with a new metrics.csv")
        return Resumed()
    try:
        meta = read_meta(folder)
        run_config.check_same(meta["config"], config.to_json(), out)
        progress, metrics = Progress(*meta["progress"]), Written(*meta["metrics"])
        tables.check_written(out / "metrics.csv", metrics)
        steps = run.schedule.steps
        timing = tables.written_timing(out / "timing.csv", steps[: progress.log_points])
        left = progress.log_points < len(steps)
        state = checkpoint.load(folder, run.like()) if left else None
        return Resumed(progress, metrics, timing, state)
    except checkpoint.Damaged as error:
        if checkpoint.latest(folder, before=latest) is None:
            raise ValueError(
                f"{error}, and it is the only one: restore it, or start a new run"
            ) from None
        aside = checkpoint.set_aside(folder, latest)
        log.say(f"{error}: continuing from the previous one; it is kept as {aside.name}")
        return read(run, config, out)
