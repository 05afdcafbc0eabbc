"""Carrying out a run: from its configuration to a folder of results, resumable at any log point."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from experiments.analysis import statistics
from experiments.environments.host import EnvironmentFailed
from experiments.installation import accelerator
from experiments.runs import (
    checkpoint,
    checksums,
    folder,
    interrupt,
    lock,
    log,
    results,
    resumption,
    start_up,
)
from experiments.runs.assembly import build
from experiments.runs.folder import check_claim, claim
from experiments.runs.interrupt import Stopped
from experiments.runs.outputs import OutputConfig
from experiments.runs.resumption import Progress, Resumed
from experiments.runs.run_config import RunConfig
from experiments.runs.start_up import Spent
from experiments.runs.waiting import waiting
from experiments.training.seeds import CutShort, Run


class Prepared(NamedTuple):
    """What a run runs, and what making it took."""

    run: Run
    spent: Spent


def execute(
    config: RunConfig,
    out: Path,
    output: OutputConfig = OutputConfig(),
    *,
    resume: bool = False,
    overwrite: bool = False,
    label: str | None = None,
    resume_folder: Path | None = None,
    prepared: Prepared | None = None,
    devices: int | None = None,
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
      prepared: `prepare(config, ...)`, where the caller has it; None: it is made here.
      devices: over how many cores or accelerators the seeds go; None: all of this machine.

    Returns:
      The content of `summary.json`.

    Raises:
      ValueError: the configuration cannot run, or the folder is taken.
      Stopped: an environment failed, or the user pressed Ctrl-C.
    """
    check_claim(out, config, resume=resume, overwrite=overwrite)
    if resume:
        folder.check_code([out], output.other_code)
    with contextlib.ExitStack() as stack:
        if was_there := out.is_dir():  # else it is made only for what can run
            stack.enter_context(lock.held(out))
        run, spent = prepared or prepare(
            config, out, resume=resume, overwrite=overwrite, devices=devices
        )
        clock = stack.enter_context(start_up.measured(before=spent))
        if not was_there:
            stack.enter_context(lock.held(out))
        before = resumption.read(run, config, out) if resume else None
        claim(out, config, output, resume=resume, overwrite=overwrite)
        layout = filter(None, [run.layout])
        for remark in (*accelerator.remarks(), *layout, *_rounded(run, config)):
            log.say_once(remark)
        for remark in run.remarks:
            log.say(remark)
        saves, resume_folder = out / "checkpoints", resume_folder or out
        try:
            try:
                _train(run, config, out, output, before, label or config.replay, clock)
            except _Interrupted as cut:
                message = _keep(run, config, saves, cut, resume_folder)
                raise Stopped(message, cut.exit_code) from None
        except EnvironmentFailed as error:
            saved = checkpoint.latest(saves)
            kept = f"the last checkpoint is intact: --resume {resume_folder}"
            raise Stopped(f"{error} ({kept if saved else 'no checkpoint yet'})", 1) from error
        except KeyboardInterrupt as error:  # the second one, perhaps while a checkpoint is saved
            message = (
                f"stopped at once: --resume {resume_folder} continues from the last checkpoint"
            )
            raise Stopped(message, interrupt.exit_code(error)) from None
        return results.conclude(config, out, output)


def prepare(
    config: RunConfig, out: Path, *, resume: bool, overwrite: bool, devices: int | None = None
) -> Prepared:
    """Make what a run runs, and change nothing: what can't run, or not in `out`, is refused here.

    Raises:
      ValueError: the configuration cannot run, or the folder is taken.
    """
    check_claim(out, config, resume=resume, overwrite=overwrite)
    with waiting(f"{config.replay}: tracing the programs"), start_up.measured() as clock:
        run = build(config, devices)
        if resume:
            with contextlib.suppress(checkpoint.Damaged):  # then the one before may serve
                resumption.check_books(run, config, out)
        if not (resume and (out / "summary.json").is_file()):
            run.like()  # traces what has yet to run
        return Prepared(run, clock())


class _Interrupted(Exception):
    """The user wants to stop.

    Attributes:
      state: the LoopState; None during the warm-up.
      progress: how far the run has come.
      metrics: what is written of `metrics.csv`.
      exit_code: of the process.
    """

    def __init__(
        self, state: Any, progress: Progress, metrics: log.Written, exit_code: int
    ) -> None:
        super().__init__(progress)
        self.state, self.progress, self.metrics = state, progress, metrics
        self.exit_code = exit_code


def _train(
    run: Run,
    config: RunConfig,
    out: Path,
    output: OutputConfig,
    before: Resumed | None,
    label: str,
    clock: Callable[[], Spent],
) -> None:
    """Train to the end from the start, or from where the run is resumed; log and save on the way.

    What the clock says before the first log point is the time that starting up took.

    Raises:
      EnvironmentFailed: an environment raised, or returned a number that is not finite.
      _Interrupted: the user wants to stop.
    """
    plan, saves = run.schedule, out / "checkpoints"
    start_at = before or resumption.BEGINNING
    (done, blocks), state = start_at.progress, start_at.state
    step = plan.steps[done - 1] if done else 0
    table = log.CSVSink(out, start_at.metrics, start_at.timing, step)
    more = _sinks(config, out, output, plan.steps[-1], step if before else None, label)
    until = "now" if run.stops_anywhere else "at the next log point"
    with (
        contextlib.closing(run),
        log.Sinks([table, *more]) as sinks,
        interrupt.deferred(until) as interrupted,
    ):
        run.stop = interrupted
        if done < len(plan.steps):
            try:
                state = _begin(run, state, label)
            except CutShort as cut:
                raise _Interrupted(
                    cut.state, Progress(0), table.metrics, interrupted.exit_code
                ) from None
            _warn_of_size(state)
        before_it = clock()
        diverged: set[int] = set()
        for index in range(done, len(plan.steps)):
            start = time.perf_counter()
            try:
                first = label if index == done else ""
                state, metrics = _chunk(run, state, plan.log_points[index] - blocks, first)
            except CutShort as cut:
                progress = Progress(index, blocks + cut.blocks)
                raise _Interrupted(
                    cut.state, progress, table.metrics, interrupted.exit_code
                ) from None
            metrics, blocks = jax.device_get(metrics), 0
            seconds, passed = time.perf_counter() - start, clock()
            compiling = before_it.compiling + passed.compiling
            elapsed, before_it = log.Elapsed(seconds, before_it.seconds, compiling), Spent()
            _check_finite(config, plan.steps[index], metrics)
            _check_frames(metrics)
            rows = _rows(config, plan.steps[index], metrics)
            broken = set(statistics.diverged(pd.DataFrame(rows))) - diverged
            sinks.log(plan.steps[index], rows, elapsed)
            checksums.note(out, table.written)
            finished = index + 1 == len(plan.steps)
            diverged |= broken
            if broken:
                _say_diverged(label, plan.steps[index], broken, output.stop_on_divergence)
            if finished or (index + 1) % output.checkpoint_every == 0:
                about = _about(config, Progress(index + 1), table.metrics)
                checkpoint.save(saves, plan.steps[index], run.to_save(state), about)
            if interrupted() and not finished:
                raise _Interrupted(state, Progress(index + 1), table.metrics, interrupted.exit_code)


def _rounded(run: Run, config: RunConfig) -> list[str]:
    """Say how many steps a run takes, if not those that were asked for."""
    taken, asked = run.schedule.steps[-1], config.loop.steps
    if taken == asked:
        return []
    phase = run.schedule.block_steps
    return [f"{taken:,} agent steps, {asked:,} rounded up to whole learning phases of {phase:,}"]


def _begin(run: Run, state: Any, label: str) -> Any:
    """Return the state after the warm-up, or the one to go on from; say what is waited for."""
    with waiting(f"{label}: compiling the warm-up", f"{label}: warming up"):
        return run.init() if state is None else run.resume(state)


def _chunk(run: Run, state: Any, blocks: int, first: str) -> tuple[Any, Any]:
    """Run blocks and an evaluation; `first` is the run's label where this compiles, else empty."""
    if not first:
        return run.chunk(state, blocks)
    now, then = "compiling the training loop", "training to the first log point"
    with waiting(f"{first}: {now}", f"{first}: {then}"):
        return run.chunk(state, blocks)


def _about(config: RunConfig, progress: Progress, metrics: log.Written) -> dict[str, Any]:
    """Return what is saved beside a state: nothing that depends on the time."""
    return {"config": config.to_json(), "progress": progress, "metrics": metrics}


def _keep(run: Run, config: RunConfig, saves: Path, cut: _Interrupted, resume_folder: Path) -> str:
    """Save a run that was cut short; return the message for the user."""
    plan = run.schedule
    if cut.state is None:
        return f"stopped in the warm-up, nothing is saved yet: --resume {resume_folder} starts over"
    at = plan.step_at(*cut.progress)
    if checkpoint.latest(saves) != at:
        checkpoint.save(
            saves, at, run.to_save(cut.state), _about(config, cut.progress, cut.metrics)
        )
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


def _say_diverged(label: str, step: int, seeds: set[int], stop: bool) -> None:
    """Say that seeds diverge; end the run if that is wanted.

    Raises:
      Stopped: it is.
    """
    which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"
    message = (
        f"{label}, {which}: no loss or no gradient was finite before the log point at "
        f"agent step {step:,}: the agent has diverged, and what follows says nothing about the "
        "method: lower its step size"
    )
    if stop:
        raise Stopped(f"{message} (stopped by --stop-on-divergence)", 1)
    log.say(message)


def _check_frames(metrics: dict[str, np.ndarray]) -> None:
    """Stop if samples miss frames."""
    lost, odd = (metrics.get(f"replay/frames_{name}") for name in ("lost", "malformed"))
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
) -> list[log.Sink]:
    sinks: list[log.Sink] = []
    if output.tensorboard:
        sinks.append(log.TensorBoardSink(out, resume_step))
    if output.wandb:
        sinks.append(log.WandbSink(out, config.to_json()))
    sinks.append(log.TerminalSink(label, total, resume_step or 0))
    return sinks


def _rows(config: RunConfig, step: int, metrics: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Turn metrics `[S]` into one row per seed."""
    return [
        {"seed": config.seed + i, "step": step, **{k: v[i] for k, v in metrics.items()}}
        for i in range(config.seeds)
    ]
