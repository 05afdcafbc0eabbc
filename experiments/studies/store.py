"""Results of a study: a table of all finished runs, and a JSON file with facts about them.

Both files are rewritten as runs end, and can be read during the study.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from experiments.files import kinds, tables
from experiments.files.disk import Damaged as Damaged  # raised by `read`
from experiments.files.disk import read_json, reading, write_bytes, write_json
from experiments.runs import code, run_config
from experiments.statistics import primary, summaries
from experiments.statistics.claims import Claim
from experiments.studies import definition as studies
from experiments.studies import grid
from experiments.studies.definition import Saved, Study
from experiments.studies.grid import Point, table_value
from jaxreplay.saving import saved_digest

FORMAT = 2  # 1: tables of sweeps, before studies
KEYS = ("env", "replay", "agent", "method")  # columns of the table before the settings
_REMEDY = "restore it, or run the study again"
_DIGITS = 9  # significant digits that distinguish all float32 numbers
# The table is written again after _PATIENCE times the CPU time of the last write, so that writing
# takes a small part of the time, but after _LONGEST seconds at most, so that a kill loses little.
_PATIENCE, _LONGEST = 20, 120.0
_SOURCES = ("experiments/studies/programs.py",)  # determine numbers, besides sources of all runs
SeededPoint = tuple[Point, int]  # a point and a seed


def code_version() -> str:
    """Return a string that identifies the code and the settings of JAX that determine results."""
    return code.version(*_SOURCES)


def versions() -> dict[str, str]:
    """Return the device and the versions of packages that may change numbers."""
    return {
        "device": jax.devices()[0].device_kind,
        "python": ".".join(map(str, sys.version_info[:3])),
        "jax": jax.__version__,
    }


def paths(folder: Path) -> tuple[Path, Path]:
    """Return the paths of the table and of the JSON file."""
    return folder / "study.csv.gz", folder / "study.json"


@dataclasses.dataclass
class Store:
    """The results of a study in a folder."""

    folder: Path
    facts: dict[str, Any]  # content of the JSON file, except its field "format"
    # The table, one row per run and log point, and rows that are not in it yet.
    frame: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)
    waiting: list[pd.DataFrame] = dataclasses.field(default_factory=list)
    unsaved: bool = False  # whether ended runs are not on disk yet
    written: tuple[float, float] = (-math.inf, 0.0)  # time of the latest write, and its CPU time

    @property
    def table(self) -> pd.DataFrame:
        """All rows, including those that are not written yet."""
        self._gather()
        return self.frame

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the table's columns with settings of the grid."""
        return tuple(self.facts["settings"])

    @property
    def study(self) -> Saved:
        """The study, without validation."""
        return studies.from_json(self.facts["study"])

    def frames(self) -> dict[str, pd.DataFrame]:
        """Return the metrics of the points that have ended runs, by id."""
        if self.table.empty:
            return {}
        metrics = self.table.drop(columns=[*KEYS, *self.settings])
        # Programs compute float32: tables from memory and from files then give the same numbers.
        exact = {
            name: column.astype(np.float32).astype(np.float64)
            for name, column in metrics.items()
            if column.dtype.kind == "f"
        }
        metrics = metrics.assign(**exact)
        return {
            str(point): own.drop(columns="point").dropna(axis=1, how="all").reset_index(drop=True)
            for point, own in metrics.groupby("point", sort=False)
        }

    def made(self) -> dict[str, dict[str, Any]]:
        """Return "code" (versions of the code) and "train_seconds" of every point, by its id."""
        seconds: dict[str, float] = {}
        for cost in self.facts["costs"]:
            runs = sum(map(len, cost["runs"].values()))
            for point, seeds in cost["runs"].items():
                seconds[point] = seconds.get(point, 0.0) + cost["seconds"] * len(seeds) / runs
        return {
            point: {"code": "+".join(facts["code"]), "train_seconds": seconds.get(point)}
            for point, facts in self.facts["points"].items()
        }

    def ended(self) -> set[tuple[str, int]]:
        """Return id of the point and seed of each run that has ended."""
        if self.table.empty:
            return set()
        pairs = self.frame[["point", "seed"]].drop_duplicates()
        return {(str(point), int(seed)) for point, seed in pairs.itertuples(index=False)}

    def missing(self, points: Iterable[Point], seeds: int | None = None) -> list[SeededPoint]:
        """Return the points and seeds that have not ended, in order.

        Args:
          points: points of the study.
          seeds: number of seeds of every point; None means the number in its configuration.
        """
        ended = self.ended()
        return [
            (point, seed)
            for point in points
            for seed in range(point.config.seed, point.config.seed + (seeds or point.config.seeds))
            if (point.id, seed) not in ended
        ]

    def add(
        self,
        runs: Sequence[tuple[SeededPoint, pd.DataFrame]],
        cost: dict[str, Any],
        code: Sequence[str],
    ) -> None:
        """Add runs that have ended, and write the files unless they were written just before.

        Args:
          runs: metrics of every run, with a column step.
          cost: time and memory that the runs took.
          code: versions of the code that computed them.
        """
        self.waiting += [self._rows(run, metrics) for run, metrics in runs]
        self.unsaved = True
        self.facts["costs"].append(cost)
        for (point, _), _ in runs:
            known = self.facts["points"][point.id]["code"]
            known += [version for version in code if version not in known]
        self.flush()

    def flush(self) -> bool:
        """Write the files if they lack runs and the last write was long enough ago.

        Returns:
          Whether all runs are on disk.
        """
        when, took = self.written
        if self.unsaved and time.monotonic() - when > min(_PATIENCE * took, _LONGEST):
            self.write()
        return not self.unsaved

    def fail(self, failures: Sequence[tuple[SeededPoint, str]]) -> None:
        """Record runs that ended without a result."""
        self.facts["failed"] |= {run_name(run): why for run, why in failures}
        self.write()

    def write(self) -> None:
        """Write both files, so that they remain readable if the process is killed at any time."""
        start = time.thread_time()
        self._gather()
        table, facts = paths(self.folder)
        # The facts come first: those about runs that the table lacks are dropped when read.
        write_json(facts, {"format": FORMAT} | self.facts)
        if len(self.frame):
            write_bytes(table, tables.encode(self.frame, _DIGITS))
        self.written, self.unsaved = (time.monotonic(), time.thread_time() - start), False

    def _gather(self) -> None:
        """Move waiting rows into the table."""
        if self.waiting:
            old = [self.frame] if len(self.frame) else []
            self.frame = self._sorted(pd.concat([*old, *self.waiting], ignore_index=True))
            self.waiting = []

    def _rows(self, run: SeededPoint, metrics: pd.DataFrame) -> pd.DataFrame:
        point, seed = run
        config = point.config
        head = {
            "point": point.id, "env": point.env, "replay": point.label, "agent": config.agent,
            "method": config.replay, **settings_of(point, self.settings), "seed": seed,
        }  # fmt: skip
        diverged = bool(summaries.diverged_seeds(metrics.assign(seed=seed)))
        columns = self.facts["columns"]
        kept = [
            name for name in metrics if not columns or name in ("step", "eval_return", *columns)
        ]
        values = metrics[kept].assign(diverged=int(diverged))
        if (thin := self.facts["study"]["options"].get("thin", 1)) > 1:
            number = np.arange(1, len(values) + 1)
            whole = (number % thin == 0) | (number == len(values))
            changed = values["eval_return"].ne(values["eval_return"].shift()).to_numpy()
            others = [name for name in kept if name not in ("step", "eval_return")]
            values.loc[~whole, others] = math.nan  # means are over every `thin`-th log point
            values = values[whole | changed]
        digits = self.facts["study"]["options"].get("digits", _DIGITS)
        if digits < _DIGITS:
            rounded = {
                name: values[name].map(lambda value: float(f"{value:.{digits}g}"))
                for name in kept
                if name not in ("step", "eval_return") and values[name].dtype.kind == "f"
            }
            values = values.assign(**rounded)
        return pd.DataFrame([head]).merge(values, how="cross")

    def _sorted(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table with rows in the order of the study, and a fixed order of columns."""
        order = {name: place for place, name in enumerate(self.facts["points"])}
        frame = frame.assign(_place=frame["point"].map(order))
        frame = frame.sort_values(["_place", "seed", "step"])
        head = ["point", *KEYS, *self.settings, "seed", "step", "eval_return"]
        rest = sorted(set(frame) - {*head, "_place"})
        return frame[head + rest].reset_index(drop=True)


def run_name(run: SeededPoint) -> str:
    """Return the name of a run in the list of failures."""
    point, seed = run
    return f"{point.id} seed {seed}"


def settings_of(point: Point, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of the columns of settings; NaN for settings that a run does not have."""
    own = {}
    for name in names:
        found = grid.find(name, point.label, point.config)
        own[name] = math.nan if found is None else table_value(found.value(point.config))
    return own


def begin(
    folder: Path,
    study: Study,
    points: Sequence[Point],
    base_points: Mapping[str, Mapping[str, str]],
) -> Store:
    """Return a new store, without any runs, for a study; write nothing.

    Args:
      folder: the folder.
      study: the study.
      points: its points.
      base_points: task -> label -> id of the point without settings.
    """
    facts: dict[str, Any] = {
        "study": study.to_json(),
        "versions": versions(),
        "code": [code_version()],
        "settings": sorted({place.name for point in points for place in point.settings}),
        "columns": list(study.options.keep or ()),
        "base_points": {env: dict(own) for env, own in base_points.items()},
        "points": {point.id: _plain(point) for point in points},
        "costs": [],
        "failed": {},
    }
    if found := _digests(points):
        facts["demos"] = found
    return Store(folder, facts)


def _digests(points: Iterable[Point]) -> dict[str, str]:
    """Return the digest of each file of demonstrations, by its path."""
    paths = {point.config.sizes.demos for point in points} - {None}
    return {path: saved_digest(path) for path in sorted(paths)}


def resume(
    folder: Path,
    study: Study,
    points: Sequence[Point],
    other_code: bool = False,
) -> Store:
    """Read the store of a study that has begun, and check that it is the same study.

    For the arguments, see `begin`; `other_code` allows results of other versions of the code.

    Raises:
      Damaged: If a file is damaged.
      ValueError: If the store contains another study, or another version of the code began it.
    """
    store = read(folder)
    choose = "use its own options, or choose another --out"
    before, now = _fixed(store.study), _fixed(study)
    if differs := sorted(k for k in {*before, *now} if before.get(k) != now.get(k)):
        raise ValueError(
            f"the study in {folder} was begun with another {', '.join(differs)}, which is fixed "
            f"before anything runs: {choose}"
        )
    known = store.facts["points"]
    if why := difference(known, points):
        raise ValueError(f"the study in {folder} {why}: {choose}")
    check_demos(store.facts, points, folder)
    made = {*store.facts["code"], *(version for own in known.values() for version in own["code"])}
    if made - {code_version()} and (study.question.until_decided or not other_code):
        ways = "choose another --out, or add --other-code true"
        if study.question.until_decided:
            ways = "or choose another --out: adding seeds until it is decided cannot mix versions"
        raise ValueError(
            f"another version of the code or other settings of JAX began the study in {folder} "
            f"({', '.join(sorted(made))}; this is {code_version()}): use that version, {ways}"
        )
    store.facts["study"] = study.to_json()
    store.facts["code"] = sorted({*store.facts["code"], code_version()})
    store.facts["failed"] = {}  # failed runs are repeated
    return store


def check_demos(facts: Mapping[str, Any], points: Iterable[Point], folder: Path) -> None:
    """Raise ValueError if a file of --demos has changed since the study in a folder began."""
    for path, digest in _digests(points).items():
        if facts.get("demos", {}).get(path, digest) != digest:
            raise ValueError(
                f"{path} has changed since the study in {folder} began: restore it, or choose "
                "another --out"
            )


def difference(known: Mapping[str, Any], points: Sequence[Point]) -> str:
    """Return the difference between the saved points of a study, by id, and its present points.

    It is "" if there is none.
    """
    asked = {point.id: point.config.to_json() for point in points}
    if set(known) != set(asked):
        other = min(set(known) ^ set(asked))
        return f"{'does not have' if other in asked else 'also has'} '{other}'"
    for point, config in asked.items():
        if differs := run_config.differing(known[point]["config"], config):
            return f"ran '{point}' with another {', '.join(differs)}"
    return ""


def _fixed(study: Saved) -> dict[str, Any]:
    """Return the parts of a study that are fixed once it has begun, by name."""
    question, options = study.question, study.options
    fixed = dataclasses.asdict(question)
    fixed |= {axis.name: axis.texts for axis in study.axes}
    fixed |= {"threshold": options.threshold, "keep": options.keep}
    return fixed | {"claims": {name: asked(own) for name, own in study.claims.items()}}


def asked(claims: Iterable[Claim]) -> list[Claim]:
    """Return claims without their words, which may be corrected after the runs."""
    return [dataclasses.replace(claim, says="") for claim in claims]


def read(folder: Path) -> Store:
    """Read the results of a study, whether it has ended or not.

    Raises:
      Damaged: If a file is damaged.
      ValueError: If there is no study, or another version of the code wrote it.
    """
    table, path = paths(folder)
    if not path.exists():
        raise ValueError(f"{folder} does not contain a study: use the folder of a study")
    facts = read_json(path, latest=FORMAT)
    if facts["format"] < FORMAT:
        raise ValueError(f"{path} was written by an older version: run the study again")
    with reading(path, _REMEDY):
        _check(facts)
    del facts["format"]
    facts.setdefault("code", [])  # older files name only the versions of ended runs
    store = Store(folder, facts)
    if table.exists():  # a process that was killed may not have written the first one
        frame = tables.decode(table)
        with reading(table, _REMEDY):
            _check_table(frame, facts)
            store.frame = _typed(frame, store.settings)
    ended = store.ended()
    runs = [
        {(point, seed) for point in cost["runs"] for seed in cost["runs"][point]}
        for cost in facts["costs"]
    ]
    facts["costs"] = [cost for cost, own in zip(facts["costs"], runs, strict=True) if own <= ended]
    return store


def _typed(frame: pd.DataFrame, settings: Sequence[str]) -> pd.DataFrame:
    """Convert the settings in a table from a file to the types that were written."""
    words = {True: "true", False: "false"}
    own = [name for name in settings if frame[name].dtype.kind not in "iuf"]
    changed = {
        name: [words.get(value, value) if isinstance(value, bool) else value for value in column]
        for name, column in frame[own].astype(object).items()
    }
    return frame.assign(**{str(name): values for name, values in changed.items()})


def _plain(point: Point) -> dict[str, Any]:
    return {
        "env": point.env, "replay": point.label, "method": point.config.replay,
        "settings": {place.name: value for place, value in point.settings.items()},
        "config": point.config.to_json(), "code": [],
    }  # fmt: skip


_POINT = kinds.record({
    "env": kinds.text, "replay": kinds.text, "method": kinds.text,
    "settings": kinds.dict_of(kinds.anything), "code": kinds.list_of(kinds.text),
    "config": kinds.dict_of(kinds.anything),
})  # fmt: skip
_COST = kinds.record({
    "runs": kinds.dict_of(kinds.many(kinds.whole)), "seconds": kinds.number,
    "compiling": kinds.number,
})  # fmt: skip
_FACTS = {
    "study": kinds.dict_of(kinds.anything), "code?": kinds.list_of(kinds.text),
    "versions": kinds.dict_of(kinds.text), "settings": kinds.list_of(kinds.text),
    "columns": kinds.list_of(kinds.text), "base_points": kinds.dict_of(kinds.dict_of(kinds.text)),
    "points": kinds.dict_of(_POINT), "costs": kinds.list_of(_COST),
    "failed": kinds.dict_of(kinds.text), "demos?": kinds.dict_of(kinds.text),
}  # fmt: skip


def _check(facts: Mapping[str, Any]) -> None:
    """Raise ValueError if facts lack a field, have a wrong type or value, or an unknown point."""
    kinds.check(facts, _FACTS)
    primary.parse(studies.from_json(facts["study"]).question.primary, threshold=0.0)
    for name, point in facts["points"].items():
        try:
            run_config.check_saved(point["config"])
        except ValueError as error:
            raise ValueError(f"points: the configuration of {name} is invalid: {error}") from None
    named = {
        "costs": [point for cost in facts["costs"] for point in cost["runs"]],
        "base_points": [point for own in facts["base_points"].values() for point in own.values()],
    }
    for field, points in named.items():
        _check_known(facts, field, points)


def _check_table(table: pd.DataFrame, facts: Mapping[str, Any]) -> None:
    """Raise ValueError if a table lacks a column, has a wrong type, or a row of another point."""
    texts = ("point", *KEYS)
    numbers = ["seed", "step", "eval_return", "diverged"]
    numbers += [name for name in table if name not in (*texts, *facts["settings"], *numbers)]
    tables.check(table, (*texts, *facts["settings"]), numbers)
    _check_known(facts, "point", table["point"].unique())
    arms = {(env, label) for env, own in facts["base_points"].items() for label in own}
    arms |= {(own["env"], own["replay"]) for own in facts["points"].values()}
    for env, label, *others in table[list(KEYS)].drop_duplicates().itertuples(index=False):
        if (env, label) not in arms or not all(map(kinds.text, others)):
            raise ValueError(
                f"its table has rows of arm {label} on {env}, which the study does not define"
            )


def _check_known(facts: Mapping[str, Any], field: str, points: Any) -> None:
    unknown = [point for point in points if point not in facts["points"]]
    if unknown:
        raise ValueError(f"{field} has an unknown point {unknown[0]!r}")
