"""One run: from its configuration to a folder of results, resumable at any log point.

A run's folder holds `config.json`, `metrics.csv` (one row per log point and seed, deterministic),
`timing.csv`, `checkpoints/`, `tensorboard/`, and at the end `summary.json`,
`learning_curve.png`, `replayed.png` and `own_metrics.png`.
"""

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from experiments import checkpoint, interrupt, log, registry, report, statistics
from experiments.assembly import build
from experiments.config import OutputConfig
from experiments.environments.host import EnvironmentFailed
from experiments.files import write_json
from experiments.run_config import RunConfig
from experiments.sweep import Run

ARTEFACTS = (
    "config.json", "metrics.csv", "timing.csv", "summary.json", "learning_curve.png",
    "replayed.png", "own_metrics.png", "episode.gif", "episode.mp4", "checkpoints", "tensorboard",
    "wandb",
)  # fmt: skip


def check_claim(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that this run may not have; touch nothing.

    Raises:
      ValueError: the folder holds a run and neither `resume` nor `overwrite` is given, or the run
        to resume is not there or has another configuration.
    """
    saved = out / "config.json"
    if resume and not saved.exists():
        raise ValueError(f"{out} holds no run to resume: give the folder of a run")
    if resume:
        before = RunConfig.from_json(json.loads(saved.read_text()))
        checkpoint.check_same_config(before.to_json(), config.to_json(), out)
    elif saved.exists() and not overwrite:
        raise ValueError(
            f"{out} already holds a run: add --overwrite, or --resume {out}, "
            "or choose another --out"
        )


def claim(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Make `out` this run's folder, never destroying another run's unasked.

    Raises:
      ValueError: as `check_claim`.
    """
    check_claim(out, config, resume=resume, overwrite=overwrite)
    if resume:
        return
    for name in ARTEFACTS:
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config.to_json())


def execute(
    config: RunConfig,
    out: Path,
    output: OutputConfig = OutputConfig(),
    *,
    resume: bool = False,
    overwrite: bool = False,
    label: str | None = None,
) -> dict[str, Any]:
    """Train all seeds of a run, log, checkpoint, and write its results.

    A resumed run ends with the same metrics, bit for bit, as one that was never interrupted (on
    the same machine and versions).

    Args:
      config: what to run.
      out: the run's folder.
      output: what to write besides, and how often.
      resume: go on from the last checkpoint in `out`.
      overwrite: discard a run that `out` holds.
      label: what the terminal calls the run; None: its replay method.

    Returns:
      The content of `summary.json`.

    Raises:
      ValueError: the configuration cannot run, or the folder is taken.
      Stopped: an environment failed, or the user pressed Ctrl-C.
    """
    run = build(config)
    claim(out, config, resume=resume, overwrite=overwrite)
    for note in run.notes:
        log.say(note)
    folder = out / "checkpoints"
    done = 0
    state = None
    if resume and checkpoint.latest(folder) is not None:
        done = checkpoint.read_meta(folder)["log_points"]
        state = checkpoint.load(folder, run.like())
    label = label or config.replay
    try:
        _train(run, config, out, output, state, done if resume else None, label)
    except EnvironmentFailed as error:
        saved = checkpoint.latest(folder)
        hint = f"the last checkpoint is intact: --resume {out}" if saved else "no checkpoint yet"
        raise Stopped(f"{error} ({hint})") from error
    return _conclude(config, out, output)


def _train(
    run: Run,
    config: RunConfig,
    out: Path,
    output: OutputConfig,
    state: Any,
    resumed: int | None,
    label: str,
) -> None:
    """Go from the log point at which the run was resumed to where the user wants to stop."""
    plan, folder, done = run.schedule, out / "checkpoints", resumed or 0
    shown = None if resumed is None else plan.steps[done - 1] if done else 0
    with (
        contextlib.closing(run),
        _sinks(config, out, output, plan.steps[-1], shown, label) as sinks,
        interrupt.deferred() as interrupted,
    ):
        if done < len(plan.steps):
            state = run.init() if state is None else run.resume(state)
        for index in range(done, len(plan.steps)):
            start = time.perf_counter()
            state, metrics = run.chunk(state, plan.log_points[index])
            metrics = jax.device_get(metrics)
            seconds = time.perf_counter() - start
            _check_frames(metrics)
            sinks.log(plan.steps[index], _rows(config, plan.steps[index], metrics), seconds)
            finished = index + 1 == len(plan.steps)
            if finished or interrupted() or (index + 1) % output.checkpoint_every == 0:
                checkpoint.save(folder, plan.steps[index], state, {"log_points": index + 1})
            if interrupted() and not finished:
                raise Stopped(
                    f"stopped at {plan.steps[index]:,} of {plan.steps[-1]:,} agent steps, with a "
                    f"checkpoint there: --resume {out} goes on"
                )


class Stopped(Exception):
    """A run ended before its end; says why, and how to go on."""


def _check_frames(metrics: dict[str, np.ndarray]) -> None:
    """Refuse to go on with samples that miss frames."""
    lost = metrics.get("replay/frames_lost")
    if lost is not None and lost.any():
        raise ValueError(
            "episodes are too short for the replay's spare frames, and samples miss some: raise "
            "--frame-spare, or give --frame-stack 0"
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


def _conclude(config: RunConfig, out: Path, output: OutputConfig) -> dict[str, Any]:
    """Write the summary and the figure of a finished run."""
    frame = pd.read_csv(out / "metrics.csv", float_precision="round_trip")
    timing = pd.read_csv(out / "timing.csv")
    threshold = threshold_of(config, output)
    summary = {
        "env": config.env,
        "agent": config.agent,
        "replay": config.replay,
        **statistics.summarise(frame, threshold),
        "steps_per_second": float(timing["steps_per_second"].median()),
        "train_seconds": float(timing["seconds"].sum()),
        "versions": versions(),
    }
    write_json(out / "summary.json", summary)
    title = f"{config.agent} with {config.replay} replay on {config.env}"
    report.learning_curves({config.replay: frame}, out / "learning_curve.png", title, threshold)
    report.replayed({config.replay: frame}, out / "replayed.png", f"What {title} replays")
    report.own_metrics({config.replay: frame}, out / "own_metrics.png", title)
    return summary


def threshold_of(config: RunConfig, output: OutputConfig) -> float | None:
    """Return the return that counts as solved: the one asked for, or the environment's own."""
    if output.threshold is not None:
        return output.threshold
    return registry.THRESHOLDS.get(config.env)


def versions() -> dict[str, str]:
    """Return what the numbers may depend on: device and versions."""
    return {
        "device": jax.devices()[0].device_kind,
        "python": ".".join(map(str, os.sys.version_info[:3])),
        "jax": jax.__version__,
    }
