"""Execution of a run: from its configuration to a folder of results, resumable at log points."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from experiments.environments.host import EnvironmentFailed
from experiments.runs import checkpoint, folder, interrupt, log, manifest, results, tables
from experiments.runs.assembly import build
from experiments.runs.compilation import Spent, measure_time
from experiments.runs.folder import check_run, prepare_run
from experiments.runs.interrupt import Stopped
from experiments.runs.log import Elapsed, waiting
from experiments.runs.run_config import OutputConfig, RunConfig, check_same
from experiments.runs.tables import CSVSink, Written
from experiments.statistics import statistics
from experiments.training import spread
from experiments.training.seeds import CutShort, Run

_LARGE = 1e9  # bytes of a checkpoint above which a hint is printed


class Progress(NamedTuple):
    """Progress of a run at a checkpoint."""

    log_points: int  # number of log points so far
    blocks: int = 0  # number of blocks since the last log point


class Resumed(NamedTuple):
    """State from which a run continues; by default the beginning."""

    progress: Progress = Progress(0)
    metrics: Written = Written()  # size and checksum of `metrics.csv`
    timing: Written = Written()  # size and checksum of `timing.csv`
    state: Any = None  # LoopState; None at the beginning and the end


def execute(
    config: RunConfig,
    out: Path,
    output: OutputConfig = OutputConfig(),
    *,
    resume: bool = False,
    overwrite: bool = False,
    label: str | None = None,
    resume_folder: Path | None = None,
    devices: int | None = None,
) -> dict[str, Any]:
    """Train all seeds of a run, log, save checkpoints, and write its results.

    A resumed run has the same metrics, bit for bit, as an uninterrupted one on the same machine and
    versions, unless its environments run on the host, where they are reset.

    Args:
      config: configuration of the run.
      out: folder of the run.
      output: output in addition to the metrics.
      resume: whether to continue from the last checkpoint in `out`.
      overwrite: whether to discard a run in `out`.
      label: name of the run on the terminal, by default that of the replay method.
      resume_folder: argument of --resume in messages, by default `out`.
      devices: number of cores or accelerators for the seeds, by default all of this machine.

    Returns:
      The content of `summary.json`.

    Raises:
      ValueError: the configuration cannot run, or the folder is taken.
      Stopped: an environment failed, the agent diverged, or the user stopped the run.
    """
    check_run(out, config, resume=resume, overwrite=overwrite)
    if resume:
        folder.check_code(out, output.other_code)
        folder.check_demos(out, config)
    resume_folder, label = resume_folder or out, label or config.replay
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.lock(out))
        clock, before = stack.enter_context(measure_time()), None
        with waiting(f"{config.replay}: tracing the programs"):
            run = build(config, devices)
            if resume:
                before = _resumed(run, config, out)
            else:
                run.like()  # traces the programs, which may fail, before the folder changes
        prepare_run(out, config, output, resume=resume, overwrite=overwrite)
        for remark in (spread.describe(), *run.remarks, *_rounded(run, config)):
            log.say_once(remark)
        try:
            _Training(run, config, out, output, label, resume_folder).train(before, clock)
        except EnvironmentFailed as error:
            saved = checkpoint.latest(out / "checkpoints")
            how = f"--resume {resume_folder} continues from the last checkpoint" if saved else ""
            raise Stopped(
                f"{error}" if saved else f"{error} (no checkpoint yet)", 1, how
            ) from error
        except KeyboardInterrupt as error:  # second signal, perhaps while a checkpoint is saved
            how = f"--resume {resume_folder} continues from the last checkpoint"
            raise Stopped("stopped at once", interrupt.exit_code(error), how) from None
        return results.conclude(config, out, output)


def _resumed(run: Run, config: RunConfig, out: Path) -> Resumed:
    """Return the state at the last checkpoint or, if it is damaged, at the previous one.

    Without a checkpoint, the run starts over.

    Raises:
      ValueError: a file was edited, the run has ended and its checkpoints are missing, or all
        checkpoints are damaged.
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
        meta = checkpoint.read_run(folder)
        check_same(meta["config"], config.to_json(), out)
        progress, metrics = Progress(*meta["progress"]), Written(*meta["metrics"])
        tables.check_written(out / "metrics.csv", metrics)
        steps = run.schedule.steps
        timing = tables.written_timing(out / "timing.csv", steps[: progress.log_points])
        left = progress.log_points < len(steps)
        state = checkpoint.load(folder, run.like()) if left else None
        checkpoint.check_name(folder, latest, run.schedule, progress)
        return Resumed(progress, metrics, timing, state)
    except checkpoint.Damaged as error:
        if checkpoint.latest(folder, before=latest) is None:
            raise
        aside = checkpoint.set_aside(folder, latest)
        log.say(f"{error}; now continuing from the previous one; it is kept as {aside.name}")
        return _resumed(run, config, out)


class _Training(NamedTuple):
    """Training of a run in its folder."""

    run: Run
    config: RunConfig
    out: Path
    output: OutputConfig
    label: str
    resume_folder: Path

    def train(self, before: Resumed | None, clock: Callable[[], Spent]) -> None:
        """Train from the beginning, or from a resumed run's state, with logs and checkpoints.

        `clock` returns the time since its previous call, at first that of the start-up. Errors are
        those of `execute`, and EnvironmentFailed.
        """
        run, steps = self.run, self.run.schedule.steps
        (index, blocks), metrics, timing, state = before or Resumed()
        step = steps[index - 1] if index else 0
        table = CSVSink(self.out, metrics, timing, step)
        others = self._sinks(step if before else None)
        if not manifest.has_ended(self.out):  # new checksums would hide edits after the end
            self._note(table)
        until = "now" if run.stops_anywhere else "at the next log point"
        with contextlib.ExitStack() as stack:
            for each in (run, *others):
                stack.callback(each.close)
            run.stop = stopping = stack.enter_context(interrupt.defer_signals(until))
            try:
                if index < len(steps):
                    state = self._begin(state)
                start_up, first, diverged = clock(), index, set[int]()
                for index in range(first, len(steps)):
                    start = time.perf_counter()
                    state, found = self._chunk(state, index, blocks, index == first)
                    rows, blocks = _rows(self.config, steps[index], jax.device_get(found)), 0
                    seconds, compiling = time.perf_counter() - start, clock().compiling
                    elapsed = Elapsed(seconds, start_up.seconds, start_up.compiling + compiling)
                    start_up = Spent()
                    broken = set(statistics.diverged_seeds(pd.DataFrame(rows))) - diverged
                    for sink in (table, *others):
                        sink.log(steps[index], rows, elapsed)
                    self._note(table)
                    diverged |= broken
                    if broken:
                        self._report_divergence(steps[index], broken)
                    finished = index + 1 == len(steps)
                    if finished or (index + 1) % self.output.checkpoint_every == 0:
                        self._save(state, Progress(index + 1), table)
                    if stopping() and not finished:
                        index += 1
                        raise CutShort(state, 0)
            except CutShort as cut:
                progress = Progress(index, blocks + cut.blocks)
                reason, how = self._keep(cut.state, progress, table)
                raise Stopped(reason, stopping.exit_code, how) from None

    def _begin(self, state: Any) -> Any:
        """Return the state after the warm-up, or a saved state ready to continue."""
        with waiting(f"{self.label}: compiling the warm-up, and warming up"):
            state = self.run.init() if state is None else self.run.resume(state)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        if size > _LARGE:
            log.say(
                f"each checkpoint takes {size / 1e9:.1f} GB: --checkpoint-every spaces them out"
            )
        return state

    def _chunk(self, state: Any, index: int, blocks: int, first: bool) -> tuple[Any, Any]:
        """Run the remaining blocks up to a log point; return state and metrics."""
        left = self.run.schedule.log_points[index] - blocks
        shown = waiting(f"{self.label}: compiling, and training to the first log point")
        with shown if first else contextlib.nullcontext():
            return self.run.chunk(state, left)

    def _note(self, table: CSVSink) -> None:
        manifest.note(self.out, {name: [own] for name, own in table.written.items()})

    def _save(self, state: Any, progress: Progress, table: CSVSink) -> None:
        """Save a checkpoint, whose content does not depend on wall-clock time."""
        metrics: Written = table.written["metrics.csv"]
        about = {"config": self.config.to_json(), "progress": progress, "metrics": metrics}
        step = self.run.schedule.step_at(*progress)
        checkpoint.save(self.out / "checkpoints", step, self.run.to_save(state), about)

    def _keep(self, state: Any, progress: Progress, table: CSVSink) -> tuple[str, str]:
        """Save an interrupted run; return the reason and the way to continue, for the message."""
        plan, resume = self.run.schedule, f"--resume {self.resume_folder}"
        if state is None:
            return "stopped in the warm-up, nothing is saved yet", f"{resume} starts over"
        at = plan.step_at(*progress)
        if checkpoint.latest(self.out / "checkpoints") != at:
            self._save(state, progress, table)
        total = plan.steps[-1]
        where = f"{at:,} of {total:,} agent steps"
        return f"stopped at {where}, with a checkpoint there", f"{resume} continues"

    def _report_divergence(self, step: int, seeds: set[int]) -> None:
        """Print a line about seeds that diverged, or raise Stopped if the options require it."""
        which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"
        message = (
            f"{self.label}, {which}: no loss or no gradient was finite before the log point at "
            f"agent step {step:,}: the agent has diverged, and its results do not measure the "
            "method: lower its step size"
        )
        if self.output.stop_on_divergence:
            raise Stopped(f"{message} (stopped by --stop-on-divergence)", 1)
        log.say(message)

    def _sinks(self, resume_step: int | None) -> list[log.Sink]:
        sinks: list[log.Sink] = []
        if self.output.tensorboard:
            sinks.append(log.TensorBoardSink(self.out, resume_step))
        if self.output.wandb:
            sinks.append(log.WandbSink(self.out, self.config.to_json()))
        total = self.run.schedule.steps[-1]
        return [*sinks, log.TerminalSink(self.label, total, resume_step or 0)]


def _rows(config: RunConfig, step: int, metrics: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Check metrics `[S]`, and return one row per seed."""
    _check_finite(config, step, metrics)
    _check_frames(metrics)
    return [
        {"seed": config.seed + i, "step": step, **{k: v[i] for k, v in metrics.items()}}
        for i in range(config.seeds)
    ]


def _rounded(run: Run, config: RunConfig) -> list[str]:
    """Return a line with the number of steps of a run, or [] if it is as configured."""
    taken, asked = run.schedule.steps[-1], config.loop.steps
    phase = run.schedule.block_steps
    line = f"{taken:,} agent steps, {asked:,} rounded up to whole learning phases of {phase:,}"
    return [line] * (taken != asked)


def _check_finite(config: RunConfig, step: int, metrics: dict[str, np.ndarray]) -> None:
    """Raise EnvironmentFailed, with seed and step, if a compiled environment failed."""
    message = f"{config.env} returned or received a number that is not finite"
    rows = metrics.pop("fault").astype(int)
    if rows.any():
        first = int(np.flatnonzero(rows)[0])
        at = rows[first] * config.sizes.num_envs
        raise EnvironmentFailed(f"seed {config.seed + first}, agent step {at:,}: {message}")
    broken = ~np.isfinite(metrics["eval_return"])
    if broken.any():
        seed = config.seed + int(np.flatnonzero(broken)[0])
        raise EnvironmentFailed(f"seed {seed}, evaluation at agent step {step:,}: {message}")


def _check_frames(metrics: dict[str, np.ndarray]) -> None:
    """Raise ValueError if sampled observations lack frames."""
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
