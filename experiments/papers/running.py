"""Making tables: run what is missing of an experiment or computation, keep what is finished."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.papers import tables
from experiments.papers.entry import Computation, Request
from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.tables import Data
from experiments.runs import code, folder, manifest
from experiments.runs.log import say
from experiments.runs.outputs import OutputConfig
from experiments.runs.results import versions
from experiments.runs.run import Stopped, execute
from experiments.runs.run_config import RunConfig
from experiments.training.schedule import schedule

_TIMES = ("train_seconds", "steps_per_second")


class Places(NamedTuple):
    """Where tables and runs lie, and which of those that are there count."""

    out: Path  # tables and figures
    runs: Path  # folders of runs, with checkpoints until they have ended
    other_code: bool = False  # keep what another version of the code made
    overwrite: bool = False  # make all anew


class Stale(ValueError):
    """What is there was made by something else than what is asked for."""


def kept(source: Experiment | Computation, size: SizeName, places: Places) -> Data:
    """Return what is there already of a table, and may be kept.

    What is damaged is named and made anew.

    Raises:
      Stale: another version of the code, or other settings, made it.
    """
    if places.overwrite:
        return Data()
    try:
        data = tables.read(places.out, source.name, size)
    except tables.Damaged as error:
        say(f"{error}: it is made anew")
        return Data()
    if data is None:
        return Data()
    where = tables.paths(places.out, source.name, size)[0]
    wanted = version_of(source)
    others = sorted(set(data.codes()) - {wanted})
    if others and not places.other_code:
        raise Stale(
            f"{where} was made by another version of the code ({', '.join(others)}): choose "
            "another --out, add --overwrite to make it anew, or --other-code to keep it"
        )
    if isinstance(source, Computation):
        if data.made.get("options") != plain(source.options(size)):
            raise Stale(f"{where} was made with other options: {_WAYS_OUT}")
        return data
    asked = {
        (env, label): arm.config.to_json()
        for env, arms in source.runs(size).items()
        for label, arm in arms.items()
    }
    for env, runs in data.runs.items():
        for label, made in runs.items():
            config = asked.get((env, label))
            if config is not None and made["config"] != plain(config):
                differs = ", ".join(sorted(_differing(made["config"], plain(config))))
                raise Stale(f"{where}: {label} on {env} ran with another {differs}: {_WAYS_OUT}")
    return data


_WAYS_OUT = "choose another --out, or add --overwrite to make it anew"


def make(source: Experiment | Computation, size: SizeName, places: Places) -> Data:
    """Return a whole table; what is missing of it is run first, and kept as it ends.

    Raises:
      Stale: as `kept`.
      ValueError: an experiment can't run, or its folder is taken.
      Stopped: the user pressed Ctrl-C, or an environment failed; what is finished is kept.
    """
    data = kept(source, size, places)
    folder.make(places.out)
    if isinstance(source, Computation):
        return data if data.made else _compute(source, size, places)
    for env, label, config in missing(source, size, data):
        below = places.runs / f"{source.name}.{size}" / env.replace("/", "_") / label
        frame, facts = _run(config, below, f"{source.name}, {env}, {label}", places)
        data = data.with_run(env, label, tables.thinned(frame, source.columns), facts)
        tables.write(places.out, source.name, size, data)
    return data


def missing(experiment: Experiment, size: SizeName, data: Data) -> list[tuple[str, str, RunConfig]]:
    """Return task, label and configuration of the runs that a table lacks."""
    return [
        (env, label, arm.config)
        for env, arms in experiment.runs(size).items()
        for label, arm in arms.items()
        if label not in data.runs.get(env, {})
    ]


def version_of(source: Experiment | Computation) -> str:
    """Return the version of the code that decides a table's numbers."""
    return code.version(*(source.sources if isinstance(source, Computation) else ()))


def plain(values: Any) -> Any:
    """Return nested values as JSON gives them back."""
    if isinstance(values, dict) or hasattr(values, "items"):
        return {str(name): plain(value) for name, value in values.items()}
    return [plain(value) for value in values] if isinstance(values, (list, tuple)) else values


def _run(
    config: RunConfig, below: Path, label: str, places: Places
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Run, or go on with what is in the folder; return metrics, and what made them."""
    begun, overwrite = manifest.is_run(below), places.overwrite
    if begun and not overwrite and manifest.has_ended(below):
        found = _finished(config, below, places.other_code)
        if found is not None:
            return found
        overwrite = True
    output = OutputConfig(tensorboard=False, figures=False, other_code=places.other_code)
    overwrite = overwrite and begun
    try:
        summary = execute(
            config, below, output, resume=begun and not overwrite, overwrite=overwrite, label=label
        )
    except Stopped as error:
        what = str(error).partition(": --resume")[0]
        again = f"{what} ({label}): the same command goes on from there"
        raise Stopped(again, error.exit_code) from error.__cause__
    # What could go on from them has ended, and they are large.
    for path in (below / "checkpoints").glob("step_*.safetensors"):
        path.unlink()
    return pd.read_csv(below / "metrics.csv"), _facts(config, summary)


def _finished(
    config: RunConfig, below: Path, other_code: bool
) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """Return what a run that has ended left; None: it is damaged, which is said.

    Raises:
      Stale: another version of the code or other settings made it.
    """
    folder.check_claim(below, config, resume=True, overwrite=False)
    made_by = set(manifest.made_by(below)) - {code.version()}
    if made_by and not other_code:
        raise Stale(
            f"{below} was made by another version of the code ({', '.join(sorted(made_by))}): "
            "choose another --runs, add --overwrite to run it anew, or --other-code to keep it"
        )
    try:
        summary = json.loads((below / "summary.json").read_text())
        frame = pd.read_csv(below / "metrics.csv")
        points = len(schedule(config.loop, config.sizes.num_envs).log_points)
        if len(frame) != config.seeds * points or frame["eval_return"].isna().any():
            raise ValueError(f"metrics.csv has {len(frame)} rows, not {config.seeds * points}")
        return frame, _facts(config, summary)
    except (OSError, ValueError, KeyError) as error:
        say(f"{below} is damaged ({error}): this run is made anew")
        return None


def _facts(config: RunConfig, summary: Mapping[str, Any]) -> dict[str, Any]:
    facts = {"config": plain(config.to_json()), "versions": summary["versions"]}
    return facts | {name: round(summary[name], 2) for name in _TIMES}


def _compute(source: Computation, size: SizeName, places: Places) -> Data:
    start = time.perf_counter()
    frame = source.function(Request(source.options(size), say))
    made = {
        "options": plain(source.options(size)),
        "versions": {**versions(), "code": version_of(source)},
        "seconds": round(time.perf_counter() - start, 1),
    }
    data = Data(frame, made=made)
    tables.write(places.out, source.name, size, data)
    return data


def _differing(one: dict, other: dict, prefix: str = "") -> set[str]:
    """Return the names of what two configurations differ in."""
    found = set()
    for name in {*one, *other}:
        own, its = one.get(name), other.get(name)
        if isinstance(own, dict) and isinstance(its, dict):
            found |= _differing(own, its, f"{prefix}{name}.")
        elif own != its:
            found.add(prefix + name)
    return found
