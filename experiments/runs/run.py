"""Carrying out a run: from its configuration to a folder of results, resumable at any log point."""

import contextlib
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.environments.host import EnvironmentFailed
from experiments.runs import checkpoint, interrupt, log, results
from experiments.runs.assembly import build
from experiments.runs.folder import check_claim, claim
from experiments.runs.outputs import OutputConfig
from experiments.runs.run_config import RunConfig
from experiments.training.seeds import CutShort, Run


def execute(
    config: RunConfig,
    out: Path,
    output: OutputConfig = OutputConfig(),
    *,
    resume: bool = False,
    overwrite: bool = False,
    label: str | None = None,
    resume_folder: Path | None = None,
    run: Run | None = None,
) -> dict[str, Any]:
    """Train all seeds of a run, log, checkpoint, and write its results.

    A resumed run ends with the same metrics, bit for bit, as one that was never interrupted (on
    the same machine and versions), unless its environments live on the host: they are reset.

    Args:
      config: what to run.
      out: the run's folder.
      output: what else to write, and how often.
      resume: continue from the last checkpoint in `out`.
      overwrite: discard a run that `out` holds.
      label: what the terminal calls the run; None: its replay method.
      resume_folder: what --resume takes, where the run is part of a comparison; None: `out`.
      run: `prepare(config, ...)`, where the caller has it; None: it is made here.

    Returns:
      The content of `summary.json`.

    Raises:
      ValueError: the configuration cannot run, or the folder is taken.
      Stopped: an environment failed, or the user pressed Ctrl-C.
    """
    run = run or prepare(config, out, resume=resume, overwrite=overwrite)
    claim(out, config, resume=resume, overwrite=overwrite)
    for remark in run.remarks:
        log.say(remark)
    folder, resume_folder = out / "checkpoints", resume_folder or out
    state, progress = None, _progress(out) if resume else None
    finished = progress is not None and progress.log_points == len(run.schedule.steps)
    if resume and not finished and checkpoint.latest(folder) is not None:
        state = checkpoint.load(folder, run.like())
    label = label or config.replay
    try:
        _train(run, config, out, output, state, progress, label)
    except EnvironmentFailed as error:
        saved = checkpoint.latest(folder)
        kept = f"the last checkpoint is intact: --resume {resume_folder}"
        raise Stopped(f"{error} ({kept if saved else 'no checkpoint yet'})") from error
    except _Interrupted as cut:
        raise Stopped(_keep(run, folder, cut, resume_folder)) from None
    except KeyboardInterrupt:
        raise Stopped(
            f"stopped at once: --resume {resume_folder} continues from the last checkpoint"
        ) from None
    return results.conclude(config, out, output)


def prepare(config: RunConfig, out: Path, *, resume: bool, overwrite: bool) -> Run:
    """Make what a run runs, and change nothing: what can't run, or not in `out`, is refused here.

    Raises:
      ValueError: the configuration cannot run, or the folder is taken.
    """
    check_claim(out, config, resume=resume, overwrite=overwrite)
    run = build(config)
    if not resume or _progress(out).log_points < len(run.schedule.steps):
        run.like()  # traces what has yet to run
    return run


class Progress(NamedTuple):
    """How far a run had come when a checkpoint was saved."""

    log_points: int  # log points passed
    blocks: int = 0  # blocks since the last of them


def _progress(out: Path) -> Progress:
    """Return how far the run in a folder has come, by its last checkpoint."""
    folder = out / "checkpoints"
    if checkpoint.latest(folder) is None:
        return Progress(0)
    return Progress(**checkpoint.read_meta(folder))


class _Interrupted(Exception):
    """The user wants to stop; holds the LoopState (None during the warm-up) and the Progress."""

    def __init__(self, state: Any, progress: Progress) -> None:
        super().__init__(progress)
        self.state, self.progress = state, progress


class Stopped(Exception):
    """A run stopped early; the message says why, and how to continue."""


def _train(
    run: Run,
    config: RunConfig,
    out: Path,
    output: OutputConfig,
    state: Any,
    resumed: Progress | None,
    label: str,
) -> None:
    """Train to the end from the start, or from where the run is resumed; log and save on the way.

    Raises:
      EnvironmentFailed: an environment raised, or returned a number that is not finite.
      _Interrupted: the user wants to stop.
    """
    plan, folder = run.schedule, out / "checkpoints"
    done, blocks = resumed or (0, 0)
    resume_step = None if resumed is None else plan.steps[done - 1] if done else 0
    until = "now" if run.stops_anywhere else "at the next log point"
    with (
        contextlib.closing(run),
        _sinks(config, out, output, plan.steps[-1], resume_step, label) as sinks,
        interrupt.deferred(until) as interrupted,
    ):
        run.stop = interrupted
        if done < len(plan.steps):
            try:
                state = run.init() if state is None else run.resume(state)
            except CutShort as cut:
                raise _Interrupted(cut.state, Progress(0)) from None
            _warn_of_size(state)
        for index in range(done, len(plan.steps)):
            start = time.perf_counter()
            try:
                state, metrics = run.chunk(state, plan.log_points[index] - blocks)
            except CutShort as cut:
                raise _Interrupted(cut.state, Progress(index, blocks + cut.blocks)) from None
            metrics, blocks = jax.device_get(metrics), 0
            seconds = time.perf_counter() - start
            _check_finite(config, plan.steps[index], metrics)
            _check_frames(metrics)
            sinks.log(plan.steps[index], _rows(config, plan.steps[index], metrics), seconds)
            finished = index + 1 == len(plan.steps)
            if finished or (index + 1) % output.checkpoint_every == 0:
                checkpoint.save(folder, plan.steps[index], state, Progress(index + 1)._asdict())
            if interrupted() and not finished:
                raise _Interrupted(state, Progress(index + 1))


def _keep(run: Run, folder: Path, cut: _Interrupted, resume_folder: Path) -> str:
    """Save a run that was cut short; return the message for the user."""
    plan = run.schedule
    if cut.state is None:
        return f"stopped in the warm-up, nothing is saved yet: --resume {resume_folder} starts over"
    log_points, blocks = cut.progress
    at = plan.steps[log_points - 1] if log_points else plan.warmup_steps
    at += blocks * plan.block_steps
    if checkpoint.latest(folder) != at:
        checkpoint.save(folder, at, cut.state, cut.progress._asdict())
    return (
        f"stopped at {at:,} of {plan.steps[-1]:,} agent steps, with a checkpoint there: "
        f"--resume {resume_folder} continues"
    )


def _warn_of_size(state: Any) -> None:
    """Warn if checkpoints are large."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    if size > _LARGE:
        log.say(f"each checkpoint takes {size / 1e9:.1f} GB: --checkpoint-every spaces them out")


_LARGE = 1e9  # bytes


def _check_finite(config: RunConfig, step: int, metrics: dict[str, np.ndarray]) -> None:
    """Stop if an environment broke; environments on the host raise by themselves.

    Raises:
      EnvironmentFailed: a number is not finite; names the environment, the seed and the step.
    """
    what = f"{config.env} returned or received a number that is not finite"
    rows = metrics.pop("fault").astype(int)
    if rows.any():
        first = int(np.flatnonzero(rows)[0])
        at = rows[first] * config.sizes.num_envs
        raise EnvironmentFailed(f"seed {config.seed + first}, agent step {at:,}: {what}")
    broken = ~np.isfinite(metrics["eval_return"])
    if broken.any():
        seed = config.seed + int(np.flatnonzero(broken)[0])
        raise EnvironmentFailed(f"seed {seed}, evaluation at agent step {step:,}: {what}")


def _check_frames(metrics: dict[str, np.ndarray]) -> None:
    """Stop if samples miss frames."""
    lost, odd = (metrics.get(f"replay/frames_{name}") for name in ("lost", "odd"))
    if odd is not None and odd.any():
        raise ValueError(
            "episodes begin with stacks that are not zero before the first frame, so frames can't "
            "be stored once: start again with --frame-stack 0"
        )
    if lost is not None and lost.any():
        raise ValueError(
            "episodes are too short for the replay's spare frames, and samples miss some: start "
            "again with a larger --frame-spare, or --frame-stack 0"
        )


def _sinks(
    config: RunConfig,
    out: Path,
    output: OutputConfig,
    total: int,
    resume_step: int | None,
    label: str,
) -> log.Sinks:
    sinks: list[log.Sink] = [log.CSVSink(out, resume_step)]
    if output.tensorboard:
        sinks.append(log.TensorBoardSink(out, resume_step))
    if output.wandb:
        sinks.append(log.WandbSink(out, config.to_json()))
    sinks.append(log.TerminalSink(label, total, resume_step or 0))
    return log.Sinks(sinks)


def _rows(config: RunConfig, step: int, metrics: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Turn metrics `[S]` into one row per seed."""
    return [
        {"seed": config.seed + i, "step": step, **{k: v[i] for k, v in metrics.items()}}
        for i in range(config.seeds)
    ]
