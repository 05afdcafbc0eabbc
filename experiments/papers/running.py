"""Making tables: run the missing parts of an experiment or a computation, and keep the results."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.papers import tables
from experiments.papers.entry import Computation, Request
from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.parts import Parts
from experiments.papers.tables import Data
from experiments.runs import code, folder, interrupt, run_config
from experiments.runs.interrupt import Stopped
from experiments.runs.log import say
from experiments.runs.results import versions
from experiments.runs.run_config import RunConfig
from experiments.studies import runner, store
from experiments.studies.claims import Claim
from experiments.studies.engines import Cache
from experiments.studies.options import Where
from jaxreplay.saving import check_writable

Claims = Mapping[str, tuple[Claim, ...]]  # by id of the entry


class Places(NamedTuple):
    """Folders of results, and the results in them that may be kept."""

    out: Path  # tables, studies and figures
    runs: Path  # finished parts of unfinished computations
    other_code: bool = False  # keep results of another version of the code
    overwrite: bool = False  # discard results of other code or settings
    devices: int | None = None  # number of cores or accelerators; None: all
    cache: Cache = None  # folder of compiled programs
    hours: float | None = None  # limit for every experiment


def check_figure(path: Path, name: str, size: SizeName, places: Places) -> None:
    """Refuse to draw over a figure that is not next to the table that it would show.

    Raises:
      Stale: one line; or ValueError: it is a link.
    """
    check_writable(path, "choose another --out")
    study = tables.study_folder(places.out, name, size)
    known = tables.paths(places.out, name, size)[1].exists() or store.paths(study)[1].exists()
    if path.exists() and not known and not places.overwrite:
        raise Stale(f"{path} {_NOT_OURS}")


class Stale(ValueError):
    """Existing results were made by other code, with other settings, or by another command."""


def kept(source: Experiment | Computation, size: SizeName, places: Places) -> Data:
    """Return the existing part of a table that may be kept.

    With `overwrite`, damaged results and those of other code or settings do not count.

    Raises:
      Stale: the results are damaged, from another version of the code or other settings, or not
        of this command.
    """
    numbers, facts = _files(source, size, places)
    for path in (numbers, facts):
        check_writable(path, "choose another --out")
    is_ours = isinstance(source, Experiment) or tables.is_ours(places.out, source.name, size)
    if not places.overwrite and not is_ours:
        raise Stale(f"{facts if facts.exists() else numbers} {_NOT_OURS}")
    try:
        data = tables.read(places.out, source.name, size)
    except tables.Damaged as error:
        if isinstance(source, Experiment) and not places.overwrite:
            raise Stale(f"{error}, or add --overwrite to run the experiment again") from None
        say(f"{error}: it is made again")
        return Data()
    if data is None:
        return Data()
    reasons = stale(source, size, data, places.other_code)
    if reasons and not places.overwrite:
        (env, label), why = next(iter(reasons.items()))
        about = f"{label} on {env} " if label else ""
        raise Stale(f"{numbers}: {about}{why}: {_WAYS_OUT}")
    return Data() if reasons else data


def _files(source: Experiment | Computation, size: SizeName, places: Places) -> tuple[Path, Path]:
    """Return the paths of the numbers and of their origin."""
    if isinstance(source, Experiment):
        return store.paths(tables.study_folder(places.out, source.name, size))
    return tables.paths(places.out, source.name, size)


_NOT_OURS = "was not written by this command: add --overwrite to replace it, or use another --out"
_WAYS_OUT = (
    "choose another --out, add --overwrite to make it again, or --other-code if only the code or "
    "JAX's settings are others"
)


def stale(
    source: Experiment | Computation, size: SizeName, data: Data, other_code: bool = False
) -> dict[tuple[str, str], str]:
    """Return the reasons why parts of a table cannot be kept: (task, label) -> reason.

    Args:
      source: the experiment or computation.
      size: at which size.
      data: the existing results.
      other_code: other versions of the code are welcome.
    """
    if isinstance(source, Computation):
        if data.made["options"] != plain(source.options(size)):
            return {("", ""): "was made with other options"}
        return _of_other_code(source, data.made, ("", "")) if not other_code else {}
    found = {}
    points = source.points(size)
    for env, arms in data.runs.items():
        for label, made in arms.items():
            point = points.get(env, {}).get(label)
            if point is None:
                found[env, label] = "is not part of the experiment"
            elif differs := run_config.differing(made["config"], point.config.to_json()):
                found[env, label] = f"ran with other settings of {', '.join(differs)}"
            elif not other_code:
                found |= _of_other_code(source, made, (env, label))
    lacking = set(source.columns) - set(data.frame)
    if lacking and data.runs and not found:
        env = next(iter(data.runs))
        found[env, next(iter(data.runs[env]))] = f"has no column {', '.join(sorted(lacking))}"
    return found


def _of_other_code(
    source: Experiment | Computation, made: Mapping[str, Any], key: tuple[str, str]
) -> dict[tuple[str, str], str]:
    version, now = made["versions"]["code"], version_of(source)
    if version == now:
        return {}
    return {key: f"was made by {_OTHER_CODE} ({version}, and this is {now})"}


_OTHER_CODE = "another version of the code or with other settings of JAX"


def make(
    source: Experiment | Computation, size: SizeName, places: Places, claims: Claims | None = None
) -> Data | None:
    """Return a whole table; its missing parts are run first, and kept as they end.

    Args:
      source: the experiment or computation.
      size: name of its size.
      places: folders and limits.
      claims: claims about an experiment, which decide when a study with a growing number of seeds
        ends.

    Returns:
      The table, or None if the hours are over.

    Raises:
      Stale: as `kept`.
      ValueError: an experiment can't run, its folder is taken, or another process makes the table.
      Stopped: the user pressed Ctrl-C, or an environment failed; finished parts are kept.
    """
    folder.make(places.out)
    if isinstance(source, Experiment):
        return _train(source, size, places, claims or {})
    below = places.runs / f"{source.name}.{size}"
    with folder.held(below):
        data = kept(source, size, places)
        settings = [source.name, size, plain(source.options(size))]
        made_on = versions() | code.settings()
        version = version_of(source).partition(" ")[0]  # files go by it
        parts = Parts(below, settings, made_on, version, places.other_code)
        data = data if data.made else _compute(source, size, places, parts)
        parts.clear()
        return data


def _train(source: Experiment, size: SizeName, places: Places, claims: Claims) -> Data | None:
    """Run the study of an experiment."""
    out = tables.study_folder(places.out, source.name, size)
    data = kept(source, size, places)
    resume = data.store is not None
    if resume and data.codes() != (version_of(source),) and not missing(source, size, data):
        return data  # of another version, which is accepted, and whole
    where = Where(
        devices="auto" if places.devices is None else str(places.devices),
        hours=places.hours, other_code=places.other_code,
    )  # fmt: skip
    arms = {name for own in source.points(size).values() for name in own}
    present = {
        name: tuple(claim for claim in own if {claim.arm, claim.baseline} <= arms)
        for name, own in claims.items()
    }
    try:
        found = runner.run(
            source.study(size, present), out, resume=resume,
            overwrite=not resume and places.overwrite, where=where, cache=places.cache,
            show=False,
        )  # fmt: skip
    except Stopped as error:
        again = "the same command continues"
        raise Stopped(f"{source.name}: {error.reason}", error.exit_code, again) from None
    return found and tables.of_study(found.store)


def missing(experiment: Experiment, size: SizeName, data: Data) -> list[tuple[str, str, RunConfig]]:
    """Return task, label and configuration of the arms without the seeds of the first look."""
    study = experiment.study(size)
    ended = data.store.ended() if data.store is not None else set()
    return [
        (env, label, point.config)
        for env, arms in experiment.points(size).items()
        for label, point in arms.items()
        if not all(
            (point.id, seed) in ended
            for seed in range(point.config.seed, point.config.seed + study.looks[0])
        )
    ]


def version_of(source: Experiment | Computation) -> str:
    """Return the version of the code that decides a table's numbers."""
    return (
        code.version(*source.sources) if isinstance(source, Computation) else store.code_version()
    )


def plain(values: Any) -> Any:
    """Return nested values as JSON gives them back."""
    if isinstance(values, dict) or hasattr(values, "items"):
        return {str(name): plain(value) for name, value in values.items()}
    return [plain(value) for value in values] if isinstance(values, (list, tuple)) else values


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
        again = f"stopped: no part of {source.name} was finished: the same command begins it again"
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
            f"({', '.join(others)}) and made again: --other-code keeps them"
        )


def _finished_parts(count: int, source: Computation) -> str:
    noun, verb = ("part", "is") if count == 1 else ("parts", "are")
    return f"{count} finished {noun} of {source.name} {verb}"
