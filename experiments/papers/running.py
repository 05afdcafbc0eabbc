"""Making tables: run what is missing of an experiment or computation, keep what is results."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.papers import tables
from experiments.papers.entry import Computation, Request
from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.parts import Parts
from experiments.papers.tables import Data
from experiments.runs import (
    checkpoint,
    code,
    folder,
    interrupt,
    manifest,
    results,
    run_config,
)
from experiments.runs.log import say
from experiments.runs.results import versions
from experiments.runs.run import Stopped, execute
from experiments.runs.run_config import OutputConfig, RunConfig
from experiments.training.schedule import schedule
from jaxreplay.saving import check_writable

_TIMES = ("train_seconds", "steps_per_second")


class Places(NamedTuple):
    """Where tables and runs lie, which of those that are there count, and what runs go over."""

    out: Path  # tables and figures
    runs: Path  # folders of runs and of parts of tables, with checkpoints until they have ended
    other_code: bool = False  # keep what another version of the code made
    overwrite: bool = False  # make anew what other code or settings made
    devices: int | None = None  # over how many cores or accelerators seeds go; None: all


def check_figure(path: Path, name: str, size: SizeName, places: Places) -> None:
    """Refuse to draw over a figure that is not beside the table that it would show.

    Raises:
      Stale: one line; or ValueError: it is a link.
    """
    check_writable(path, "choose another --out")
    known = tables.paths(places.out, name, size)[1].exists()
    if path.exists() and not known and not places.overwrite:
        raise Stale(f"{path} {_NOT_OURS}")


class Stale(ValueError):
    """What is there was made by something else than what is asked for."""


def kept(source: Experiment | Computation, size: SizeName, places: Places) -> Data:
    """Return what is there already of a table, and may be kept.

    What is damaged is named and made anew; so is, with `overwrite`, what other code or settings
    made.

    Raises:
      Stale: another version of the code, or other settings, made it; or something else goes by a
        name of the table's.
    """
    numbers, facts = tables.paths(places.out, source.name, size)
    for path in (numbers, facts):
        check_writable(path, "choose another --out")
    if not places.overwrite and not tables.is_ours(places.out, source.name, size):
        raise Stale(f"{facts if facts.exists() else numbers} {_NOT_OURS}")
    try:
        data = tables.read(places.out, source.name, size)
    except tables.Damaged as error:
        say(f"{error}: it is made anew")
        return Data()
    if data is None:
        return Data()
    reasons = stale(source, size, data, places.other_code)
    if reasons and not places.overwrite:
        where = tables.paths(places.out, source.name, size)[0]
        (env, label), why = next(iter(reasons.items()))
        about = f"{label} on {env} " if label else ""
        raise Stale(f"{where}: {about}{why}: {_WAYS_OUT}")
    return data.without(reasons)


_NOT_OURS = "was not written by this command: add --overwrite to replace it, or use another --out"
_WAYS_OUT = (
    "choose another --out, add --overwrite to make it anew, or --other-code if only the code or "
    "JAX's settings are others"
)


def stale(
    source: Experiment | Computation, size: SizeName, data: Data, other_code: bool = False
) -> dict[tuple[str, str], str]:
    """Return why parts of a table are not what is asked for: (task, label) -> reason.

    Args:
      source: what is asked for.
      size: at which size.
      data: what is there.
      other_code: other versions of the code are welcome.
    """
    if isinstance(source, Computation):
        if data.made["options"] != plain(source.options(size)):
            return {("", ""): "was made with other options"}
        return _of_other_code(source, data.made, ("", "")) if not other_code else {}
    found = {}
    for env, arms in source.runs(size).items():
        for label, arm in arms.items():
            made = data.runs.get(env, {}).get(label)
            if made is None:
                continue
            differs = run_config.differing(made["config"], arm.config.to_json())
            lacking = set(source.columns) - set(data.frame)
            if differs:
                found[env, label] = f"ran with other settings of {', '.join(differs)}"
            elif lacking:
                found[env, label] = f"has no column {', '.join(sorted(lacking))}"
            elif not other_code:
                found |= _of_other_code(source, made, (env, label))
    return found


def _of_other_code(
    source: Experiment | Computation, made: Mapping[str, Any], key: tuple[str, str]
) -> dict[tuple[str, str], str]:
    version, now = made["versions"]["code"], version_of(source)
    if version == now:
        return {}
    return {key: f"was made by {_OTHER_CODE} ({version}, and this is {now})"}


_OTHER_CODE = "another version of the code or with other settings of JAX"


def make(source: Experiment | Computation, size: SizeName, places: Places) -> Data:
    """Return a whole table; what is missing of it is run first, and kept as it ends.

    Raises:
      Stale: as `kept`, or of a run's folder.
      ValueError: an experiment can't run, its folder is taken, or another process makes the table.
      Stopped: the user pressed Ctrl-C, or an environment failed; what is finished is kept, of a
        computation its finished parts.
    """
    below = places.runs / f"{source.name}.{size}"
    folder.make(places.out)
    with folder.held(below):
        data = kept(source, size, places)
        if isinstance(source, Computation):
            settings = [source.name, size, plain(source.options(size))]
            made_on = versions() | code.settings()
            version = version_of(source).partition(" ")[0]  # files go by it
            parts = Parts(below, settings, made_on, version, places.other_code)
            data = data if data.made else _compute(source, size, places, parts)
            parts.clear()
            return data
        for env, label, config in missing(source, size, data):
            if (found := _elsewhere(source, size, config, places)) is not None:
                name, frame, facts = found
                say(f"{source.name}, {env}, {label}: taken from {name}, which has the same run")
                data = data.with_run(env, label, tables.thinned(frame, source.columns), facts)
                tables.write(places.out, source.name, size, data)
        left = missing(source, size, data)
        for env, label, config in left:  # all are looked at before the first one runs
            _check_folder(config, _folder(below, env, label), places)
        for env, label, config in left:
            title = f"{source.name}, {env}, {label}"
            frame, facts = _run(config, _folder(below, env, label), title, places)
            data = data.with_run(env, label, tables.thinned(frame, source.columns), facts)
            tables.write(places.out, source.name, size, data)
        return data


def _elsewhere(
    source: Experiment, size: SizeName, config: RunConfig, places: Places
) -> tuple[str, pd.DataFrame, dict[str, Any]] | None:
    """Return a run that another experiment's table has: its name, metrics, what made them."""
    wanted = plain(config.to_json())
    for name in tables.names(places.out, size):
        if name == source.name:
            continue
        try:
            others = tables.runs(places.out, name, size)
            for env, label in ((env, label) for env, own in others.items() for label in own):
                made = others[env][label]
                if made["config"] != wanted or made["versions"]["code"] != version_of(source):
                    continue
                data = tables.read(places.out, name, size)
                assert data is not None
                frame = data.frames(env)[label]
                if set(source.columns) <= set(frame):
                    return name, frame.drop(columns=["env", "arm"]), dict(made)
        except ValueError:  # damaged, or of a later version: whoever asks for it is told
            continue
    return None


def _folder(below: Path, env: str, label: str) -> Path:
    return below / env.replace("/", "_") / label


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
    resume = manifest.is_run(below) and _misfit(config, below, places.other_code) is None
    if resume and manifest.has_ended(below):
        found = _finished(config, below)
        if found is not None:
            return found
        resume = False
    output = OutputConfig(tensorboard=False, figures=False, other_code=places.other_code)
    overwrite = manifest.is_run(below) and not resume
    try:
        summary = execute(
            config, below, output, resume=resume, overwrite=overwrite, label=label,
            devices=places.devices,
        )  # fmt: skip
    except Stopped as error:
        what = str(error).partition(": --resume")[0]
        again = f"{what} ({label}): the same command goes on from there"
        raise Stopped(again, error.exit_code) from error.__cause__
    # What could go on from them has ended, and they are large.
    checkpoint.remove(below / "checkpoints")
    return pd.read_csv(below / "metrics.csv"), _facts(config, summary)


def _check_folder(config: RunConfig, below: Path, places: Places) -> None:
    """Refuse a run's folder that other code or settings filled, unless it may be emptied.

    Raises:
      Stale: one line.
      ValueError: the folder can't be used.
    """
    if not manifest.is_run(below):
        folder.check_claim(below, config, resume=False, overwrite=places.overwrite)
        return
    why = _misfit(config, below, places.other_code)
    if why is not None and not places.overwrite:
        raise Stale(f"{below} {why}: {_WAYS_OUT}")


def _misfit(config: RunConfig, below: Path, other_code: bool) -> str | None:
    """Return why what is in a run's folder is not this run; None: it is."""
    differs = run_config.differing(run_config.read(below).to_json(), config.to_json())
    if differs:
        return f"ran with other settings ({', '.join(differs)})"
    others = set(manifest.read(below).code) - {code.version()}
    if others and not other_code:
        return f"was made by {_OTHER_CODE} ({', '.join(sorted(others))}; this is {code.version()})"
    return None


def _finished(config: RunConfig, below: Path) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """Return what a run that has ended left; None: it is damaged, which is said."""
    try:
        summary = results.read_summary(below)
        frame = results.read_metrics(below, summary)
        points = len(schedule(config.loop, config.sizes.num_envs).log_points)
        if len(frame) != config.seeds * points or frame["eval_return"].isna().any():
            raise ValueError(f"metrics.csv has {len(frame)} rows, not {config.seeds * points}")
        return frame, _facts(config, summary)
    except (OSError, ValueError, KeyError, TypeError) as error:
        say(f"{below} is damaged ({error}): this run is made anew")
        return None


def _facts(config: RunConfig, summary: Mapping[str, Any]) -> dict[str, Any]:
    facts = {"config": plain(config.to_json()), "versions": summary["versions"]}
    return facts | {name: round(summary[name], 2) for name in _TIMES}


def _compute(source: Computation, size: SizeName, places: Places, parts: Parts) -> Data:
    """Compute a table, but for the parts that are there, and write it.

    Raises:
      Stopped: the user pressed Ctrl-C; the finished parts are kept.
    """
    start = time.perf_counter()
    _say_what_is_there(source, parts)
    try:
        frame = source.function(Request(source.options(size), say, parts))
    except KeyboardInterrupt as error:
        again = f"stopped: no part of {source.name} was finished: the same command begins it anew"
        if count := parts.finished():
            kept_parts = f"{_finished_parts(count, source)} kept in {parts.folder}"
            again = f"stopped: {kept_parts}: the same command goes on from there"
        raise Stopped(again, interrupt.exit_code(error)) from None
    made = {
        "options": plain(source.options(size)),
        "versions": {**versions(), "code": "+".join([*sorted(parts.codes), version_of(source)])},
        "seconds": round(time.perf_counter() - start + parts.seconds, 1),
    }
    data = Data(frame, made=made)
    tables.write(places.out, source.name, size, data)
    return data


def _say_what_is_there(source: Computation, parts: Parts) -> None:
    if count := parts.finished():
        say(f"{_finished_parts(count, source)} there from before")
    if (others := parts.of_other_code()) and not parts.other_code:
        say(
            f"{_finished_parts(sum(others.values()), source)} of another version of the code "
            f"({', '.join(others)}) and made anew: --other-code keeps them"
        )


def _finished_parts(count: int, source: Computation) -> str:
    noun, verb = ("part", "is") if count == 1 else ("parts", "are")
    return f"{count} finished {noun} of {source.name} {verb}"
