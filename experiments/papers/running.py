"""Execution of experiments and computations: run the missing parts, and save the results."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.files import kinds
from experiments.files.disk import Damaged, read_sealed, write_sealed
from experiments.papers import archive
from experiments.papers.archive import Data
from experiments.papers.entry import Computation, Experiment, Request, Row, SizeName, Source
from experiments.runs import code, interrupt, rates
from experiments.runs.interrupt import Stopped
from experiments.runs.log import say
from experiments.runs.run_config import RunConfig
from experiments.statistics.claims import Claim
from experiments.studies import folders, runner, store
from experiments.studies.options import Cache, Where
from experiments.studies.store import versions
from jaxreplay.saving import check_writable

_PART = {
    "name": kinds.text, "seconds": kinds.number,
    "rows": kinds.list_of(kinds.dict_of(kinds.anything)),
}  # fmt: skip
Claims = Mapping[str, tuple[Claim, ...]]  # id of an entry -> its claims


class Places(NamedTuple):
    """Folder of the results, and options of the execution."""

    out: Path  # folder of tables, studies and figures
    overwrite: bool = False  # whether to discard results of other code or settings
    where: Where = Where()  # devices, time limit, and whether to accept results of other code
    cache: Cache = None  # folder of compiled programs


_WAYS_OUT = (
    "choose another --out, add --overwrite to make it again, or add --other-code if only the code "
    "or JAX's settings differ"
)


def check_figure(path: Path, name: str, size: SizeName, places: Places) -> None:
    """Check that a figure can be written without replacing one that this command did not write.

    An existing figure counts as written by this command if its table is in the same folder. With
    `places.overwrite`, any figure may be replaced.

    Raises:
      ValueError: the path is not writable, or the figure was not written by this command.
    """
    check_writable(path, "choose another --out")
    known = any(facts.exists() for _, facts in archive.paths(places.out, name, size))
    if path.exists() and not known and not places.overwrite:
        raise ValueError(
            f"{path} was not written by this command: add --overwrite to replace it, or use "
            "another --out"
        )


def read_reusable(source: Source, size: SizeName, places: Places) -> Data:
    """Return the existing results of a source if they can be reused, and otherwise empty data.

    Raises:
      ValueError: the results are damaged or were made by other code or with other settings, and
        `overwrite` is not given; or they are not writable.
    """
    files = archive.paths(places.out, source.name, size)[isinstance(source, Experiment)]
    for path in files:
        check_writable(path, "choose another --out")
    try:
        data = archive.read(places.out, source.name, size) or Data()
        why = stale(source, size, data, places.where.other_code)
        problem = f"{files[0]}: {why}: {_WAYS_OUT}" if why else ""
    except Damaged as error:
        problem = f"{error}, or add --overwrite to make it again"
    if not problem:
        return data
    if not places.overwrite:
        raise ValueError(problem)
    return Data()


def stale(source: Source, size: SizeName, data: Data, other_code: bool = False) -> str:
    """Return the reason why results cannot be reused, or "" if they can.

    Args:
      source: experiment or computation.
      size: its size.
      data: the existing results.
      other_code: whether to accept results of other code.
    """
    if isinstance(source, Computation):
        if data.made and data.made["options"] != plain(source.options(size)):
            return "was made with other options"
    elif data.store is not None:
        points = source.study(size).points()
        if why := store.difference(data.store.facts["points"], points):
            return why
        if data.runs and (lacking := set(source.columns) - set(data.frame)):
            return f"has no column {', '.join(sorted(lacking))}"
    if other_code or not (others := set(data.codes()) - {version_of(source)}):
        return ""
    return (
        "was made by another version of the code or with other settings of JAX "
        f"({', '.join(sorted(others))}, and this is {version_of(source)})"
    )


class Parts:
    """Cache of the parts of a computed table, one file per part; see `Request.part`.

    The name of a file contains a digest of the settings, code and device, so that parts made with
    another setting, code or device are not reused.

    Attributes:
      folder: folder of the files; it must exist when a part is computed.
      seconds: total duration of the parts read from files.
    """

    def __init__(self, folder: Path, *decided_by: Any) -> None:
        """Use files in `folder` made with the same JSON-able values of `decided_by`."""
        self.folder, self.seconds, self._key = folder, 0.0, _digest(decided_by)

    def __call__(self, name: str, compute: Callable[[], list[Row]]) -> list[Row]:
        """Return the rows of a part from its file, or else compute and save them.

        Args:
          name: name of the part, unique in the table.
          compute: function that returns the rows.

        Raises:
          OSError: the disk is full, or the folder is missing.
        """
        path = self.folder / f"part.{self._key}.{_digest(name)}.json"
        if path.exists():
            try:
                saved = read_sealed(path, _PART, "this part is made again")
                self.seconds += saved["seconds"]
                return saved["rows"]
            except Damaged as error:
                say(str(error))
        start = time.perf_counter()
        rows = compute()
        content = {"name": name, "seconds": time.perf_counter() - start, "rows": rows}
        write_sealed(path, content)
        return rows

    def clear(self) -> None:
        """Remove the files of all parts, also those of other settings, code or devices."""
        for name in ("part.*.json", ".part.*.tmp"):  # the latter are left by killed processes
            for path in self.folder.glob(name):
                path.unlink(missing_ok=True)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def make(
    source: Source, size: SizeName, places: Places, claims: Claims | None = None
) -> Data | None:
    """Run the missing parts of an experiment or a computation, and return its table.

    Args:
      source: experiment or computation.
      size: its size.
      places: folder of the results, and options of the execution.
      claims: claims to decide; a study with a growing number of seeds ends when they are decided.

    Returns:
      The complete table, or None if the time limit was reached.

    Raises:
      ValueError: as `read_reusable`; or the experiment cannot run, its folder is taken, or another
        process makes the table.
      Stopped: the user pressed Ctrl-C, or an environment failed; finished parts are saved.
    """
    folders.make(places.out)
    if isinstance(source, Experiment):
        return _train(source, size, places, claims or {})
    below = places.out / f"{source.name}.{size}.parts"
    with folders.lock(below):
        data = read_reusable(source, size, places)
        settings = [source.name, size, plain(source.options(size))]
        parts = Parts(below, settings, version_of(source), versions())
        data = data if data.made else _compute(source, size, places, parts)
        parts.clear()
        return data


def _train(source: Experiment, size: SizeName, places: Places, claims: Claims) -> Data | None:
    """Run the study of an experiment; return None if the time limit was reached."""
    out = archive.study_folder(places.out, source.name, size)
    data = read_reusable(source, size, places)
    resume = data.store is not None
    if resume and data.codes() != (version_of(source),) and not missing(source, size, data):
        return data  # complete, of another version that the user accepts
    arms = {name for own in source.points(size).values() for name in own}
    present = {
        name: tuple(claim for claim in own if {*claim.labels} <= arms)
        for name, own in claims.items()
    }
    found = runner.run(
        source.study(size, present), out, resume=resume,
        overwrite=not resume and places.overwrite, where=places.where, cache=places.cache,
        show=False, again=f"the same command continues {source.name}",
    )  # fmt: skip
    return found and archive.of_study(found.store)


def _compute(source: Computation, size: SizeName, places: Places, parts: Parts) -> Data:
    """Compute the missing parts of a table, and write it.

    Raises:
      Stopped: the user pressed Ctrl-C; finished parts are saved.
    """
    start = time.perf_counter()
    try:
        frame = source.function(Request(source.options(size), say, parts))
    except KeyboardInterrupt as error:
        raise Stopped(
            f"{source.name}: stopped", interrupt.exit_code(error),
            "the same command continues",
        ) from None  # fmt: skip
    made = {
        "options": plain(source.options(size)),
        "versions": {**versions(), "code": version_of(source)},
        "seconds": round(time.perf_counter() - start + parts.seconds, 1),
    }
    data = Data(frame, made=made)
    archive.write(places.out, source.name, size, data)
    return data


def missing(experiment: Experiment, size: SizeName, data: Data) -> list[RunConfig]:
    """Return the configurations of the arms that lack seeds for the study's first test."""
    study = experiment.study(size)
    points, seeds = study.points(), study.looks[0]
    runs = data.store.missing(points, seeds) if data.store else [(point, 0) for point in points]
    return list({point.id: point.config for point, _ in runs}.values())


def minutes_left(source: Source, size: SizeName, data: Data) -> float:
    """Return the estimated minutes that the missing parts of a table take on one core."""
    if isinstance(source, Computation):
        return 0.0 if data.made else source.minutes * (0.05 if size == "smoke" else 1.0)
    lacking = missing(source, size, data)
    return sum(rates.COMPILING + rates.seconds(config) for config in lacking) / 60


def minutes(source: Source, size: SizeName, data: Data) -> float:
    """Return the minutes spent on a table, plus the estimated minutes of its missing parts."""
    seconds = sum(run["train_seconds"] for runs in data.runs.values() for run in runs.values())
    return (seconds + data.made.get("seconds", 0.0)) / 60 + minutes_left(source, size, data)


def version_of(source: Source) -> str:
    """Return the version of the code that decides the numbers of a source."""
    return (
        code.version(*source.sources) if isinstance(source, Computation) else store.code_version()
    )


def plain(values: Any) -> Any:
    """Return nested values after a round trip through JSON."""
    return json.loads(json.dumps(dict(values)))
