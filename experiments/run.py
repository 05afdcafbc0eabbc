"""One run: from its configuration to a folder of results, resumable at any log point.

A run's folder holds `config.json`, `metrics.csv` (one row per log point and seed, deterministic),
`timing.csv`, `checkpoints/`, `tensorboard/`, and at the end `summary.json`,
`learning_curve.png`, `replayed.png` and `own_metrics.png`.
"""

import dataclasses
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from agents.types import Agent, Discrete
from experiments import checkpoint, environments, log, presets, registry, report, statistics
from experiments.config import EnvironmentConfig, LoopConfig, OutputConfig, ReplaySizes, schedule
from experiments.files import write_json
from experiments.loop import Program, make_program
from experiments.sweep import make_sweep
from jaxreplay.methods import METHODS
from jaxreplay.replay import make_replay

ARTEFACTS = (
    "config.json", "metrics.csv", "timing.csv", "summary.json", "learning_curve.png",
    "replayed.png", "own_metrics.png", "checkpoints", "tensorboard", "wandb",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's numbers."""

    env: str
    agent: str
    replay: str
    seeds: int
    seed: int
    env_options: EnvironmentConfig  # of the environment's family
    agent_options: Any
    replay_options: Any
    sizes: ReplaySizes
    loop: LoopConfig

    def to_json(self) -> dict[str, Any]:
        """Return nested plain values, the sections named as on the command line."""
        return {
            "env": self.env,
            "agent": self.agent,
            "replay": self.replay,
            "seeds": self.seeds,
            "seed": self.seed,
            **{section: dataclasses.asdict(getattr(self, section)) for section in SECTIONS},
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "RunConfig":
        """Return the RunConfig that `to_json` wrote.

        Raises:
          ValueError: the file was written by a version with other options.
        """
        config = defaults(saved["env"], saved["agent"], saved["replay"])
        try:
            parts = {
                section: dataclasses.replace(
                    getattr(config, section),
                    **_known(getattr(config, section), saved[section]),
                )
                for section in SECTIONS
            }
        except (TypeError, KeyError) as error:
            raise ValueError(
                f"config.json does not fit this version of jaxreplay ({error}): start a new run"
            ) from error
        return dataclasses.replace(config, seeds=saved["seeds"], seed=saved["seed"], **parts)


def _known(config: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """Return saved options, without those that were not set and no longer exist."""
    fields = {field.name for field in dataclasses.fields(config)}
    return {
        k: tuple(v) if isinstance(v, list) else v
        for k, v in saved.items()
        if k in fields or v is not None
    }


SECTIONS = ("loop", "sizes", "env_options", "agent_options", "replay_options")


def defaults(env: str, agent: str, replay: str, preset: str | None = None) -> RunConfig:
    """Return the run that these names stand for.

    Raises:
      ValueError: they do not fit one another.
    """
    registry.check_fit(agent, replay, env)
    entry = registry.AGENTS[agent]
    config = RunConfig(
        env=env,
        agent=agent,
        replay=replay,
        seeds=5,
        seed=0,
        env_options=environments.options(env),
        agent_options=entry.config(),
        replay_options=registry.replay_options(agent, replay),
        sizes=entry.sizes,
        loop=entry.loop,
    )
    return config if preset is None else presets.apply(preset, config)


def build(config: RunConfig) -> Program:
    """Make the program of a run.

    Raises:
      ValueError: one line that says which option does not fit.
    """
    if config.seeds < 1:
        raise ValueError(f"seeds is {config.seeds}: it must be at least 1")
    registry.check_fit(config.agent, config.replay, config.env)
    entry = registry.AGENTS[config.agent]
    registry.check_options(config.agent, config.replay_options)
    sizes = config.sizes.resolve(config.loop.steps)
    updates = schedule(config.loop, sizes.num_envs).updates
    method = METHODS[config.replay].method(config.replay_options, updates)
    replay = make_replay(method.sampler, **dataclasses.asdict(sizes))
    environment = environments.make(config.env, **config.env_options.kwargs())
    agent = entry.make(config.agent_options, environment.action_space, method.objective)
    _check_network(environment, agent)
    return make_program(environment, agent, replay, config.loop)


def _check_network(environment: environments.Environment, agent: Agent) -> None:
    """Refuse a network that does not fit the observations, before a folder is claimed."""
    space, key = environment.action_space, jax.random.key(0)
    discrete = isinstance(space, Discrete)
    action = jnp.zeros((), jnp.int32) if discrete else jnp.zeros(space.size)
    jax.eval_shape(agent.init, key, jax.eval_shape(environment.reset, key)[1], action)


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
    """
    program = build(config)
    claim(out, config, resume=resume, overwrite=overwrite)
    for note in program.notes:
        log.say(note)
    plan = program.schedule
    keys = jax.vmap(jax.random.key)(jnp.arange(config.seed, config.seed + config.seeds))
    sweep = make_sweep(program)
    folder = out / "checkpoints"
    done = 0
    state = None
    if resume and checkpoint.latest(folder) is not None:
        done = checkpoint.read_meta(folder)["log_points"]
        state = checkpoint.load(folder, jax.eval_shape(sweep.init, keys))
    last_step = plan.steps[done - 1] if done else 0
    label = label or config.replay
    shown = last_step if resume else None
    with _sinks(config, out, output, plan.steps[-1], shown, label) as sinks:
        if done < len(plan.steps):
            state = sweep.init(keys) if state is None else state
            chunk = sweep.chunk.lower(state, jnp.asarray(1, jnp.int32)).compile()
        for index in range(done, len(plan.steps)):
            start = time.perf_counter()
            blocks = jnp.asarray(plan.log_points[index], jnp.int32)
            state, metrics = chunk(state, blocks)
            metrics = jax.device_get(metrics)
            seconds = time.perf_counter() - start
            sinks.log(plan.steps[index], _rows(config, plan.steps[index], metrics), seconds)
            finished = index + 1 == len(plan.steps)
            if finished or (index + 1) % output.checkpoint_every == 0:
                checkpoint.save(folder, plan.steps[index], state, {"log_points": index + 1})
    return _conclude(config, out, output)


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
