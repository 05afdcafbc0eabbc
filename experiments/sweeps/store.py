"""The results of a sweep: one table of all runs, and a file that says what made it.

The table is written anew, whole, as runs end, and can be read meanwhile. What is in it has ended;
nothing else says so.
"""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis import statistics, stored
from experiments.analysis.files import write_bytes
from experiments.analysis.stored import Damaged as Damaged  # what reading one may raise
from experiments.runs import checksums, code, same_config
from experiments.runs.results import versions
from experiments.sweeps import facts as facts_
from experiments.sweeps.facts import KEYS as KEYS
from experiments.sweeps.grid import Point, shown_value

FORMAT = 1
TABLE, FACTS = "sweep.csv.gz", "sweep.json"
_DIGITS = 9  # tell all of float32 apart
_PATIENCE = 20  # times as long as writing a table takes, another is not written
_SOURCES = ("experiments/sweeps/programs.py",)  # decide numbers, beside those of any run
Lane = tuple[Point, int]  # and its seed


def code_version() -> str:
    """Return the version of the code, and settings of JAX, that decide a sweep's numbers."""
    return code.version(*_SOURCES)


@dataclasses.dataclass
class Store:
    """A sweep's results in its folder.

    Attributes:
      folder: where they lie.
      facts: the content of its `sweep.json`, but for format and checksums.
      order: the places of points by their ids.
      settings: columns of the settings.
      columns: metrics that are kept; (): all.
      frame: a row per run and log point.
      crc32: of the table as it lies there; None: there is none yet.
      waiting: rows that have yet to be put into the table.
      written: when the table was written last, and how many seconds that took.
    """

    folder: Path
    facts: dict[str, Any]
    order: Mapping[str, int]
    settings: tuple[str, ...]
    columns: tuple[str, ...] = ()
    frame: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)
    crc32: int | None = None
    waiting: list[pd.DataFrame] = dataclasses.field(default_factory=list)
    written: tuple[float, float] = (-math.inf, 0.0)

    @property
    def table(self) -> pd.DataFrame:
        """All rows, those that wait to be written among them."""
        self._gather()
        return self.frame

    def ended(self) -> set[tuple[str, int]]:
        """Return the ids of points, and seeds, that are in the table."""
        if self.table.empty:
            return set()
        pairs = self.frame[["point", "seed"]].drop_duplicates()
        return {(str(point), int(seed)) for point, seed in pairs.itertuples(index=False)}

    def extend(self, points: Sequence[Point]) -> None:
        """Add points that were not known when the sweep began, unless they are there."""
        for point in points:
            self.facts["points"].setdefault(point.id, _plain(point))
        self.order = _order(self.facts)

    def missing(self, points: Sequence[Point]) -> list[Lane]:
        """Return the points and seeds that have yet to run, in order."""
        ended = self.ended()
        return [
            (point, seed)
            for point in points
            for seed in range(point.config.seed, point.config.seed + point.config.seeds)
            if (point.id, seed) not in ended
        ]

    def add(self, lanes: Sequence[tuple[Lane, pd.DataFrame]], cost: dict[str, Any]) -> None:
        """Add runs that have ended; write it all, unless that would take more time than they do.

        Args:
          lanes: metrics of each, with a column step.
          cost: what is said of them in `sweep.json`.
        """
        self.waiting += [self._rows(lane, metrics) for lane, metrics in lanes]
        self.facts["costs"].append(cost)
        when, took = self.written
        if time.monotonic() - when > _PATIENCE * took:
            self.write()

    def fail(self, failures: Sequence[tuple[Lane, str]]) -> None:
        """Note which runs ended without a result."""
        self.facts["failed"] |= {lane_name(lane): why for lane, why in failures}
        self.write()

    def write(self) -> None:
        """Write both files; a process that is killed between them leaves what can be read."""
        start = time.monotonic()
        self._gather()
        encoded = stored.encode(self.frame, _DIGITS) if len(self.frame) else None
        # The table may be the one from before, or the one that comes: which, its checksum says.
        known = [self.crc32, encoded.crc32 if encoded else None]
        content = {"format": FORMAT, "crc32": [each for each in known if each is not None]}
        checksums.write_json(self.folder / FACTS, content | self.facts)
        if encoded:
            write_bytes(self.folder / TABLE, encoded.content)
            self.crc32 = encoded.crc32
        self.written = (time.monotonic(), time.monotonic() - start)

    def _gather(self) -> None:
        """Put the rows that wait into the table."""
        if self.waiting:
            old = [self.frame] if len(self.frame) else []
            self.frame = self._sorted(pd.concat([*old, *self.waiting], ignore_index=True))
            self.waiting = []

    def _rows(self, lane: Lane, metrics: pd.DataFrame) -> pd.DataFrame:
        point, seed = lane
        config = point.config
        head = {
            "point": point.id, "env": point.env, "replay": point.label, "agent": config.agent,
            "method": config.replay, **settings_of(point, self.settings), "seed": seed,
        }  # fmt: skip
        diverged = bool(statistics.diverged(metrics.assign(seed=seed)))
        kept = [name for name in metrics if name == "step" or self._keeps(str(name))]
        values = metrics[kept].assign(diverged=int(diverged))
        return pd.DataFrame([head]).merge(values, how="cross")

    def _keeps(self, name: str) -> bool:
        return not self.columns or name in (*self.columns, "eval_return")

    def _sorted(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return rows in the sweep's order, columns in one that does not hang on the runs'."""
        place = frame["point"].map(self.order)
        frame = frame.assign(_place=place).sort_values(["_place", "seed", "step"])
        head = ["point", *KEYS, *self.settings, "seed", "step", "eval_return"]
        rest = sorted(set(frame) - {*head, "_place"})
        return frame[head + rest].reset_index(drop=True)


def lane_name(lane: Lane) -> str:
    """Return what a run is called where failures are listed."""
    point, seed = lane
    return f"{point.id} seed {seed}"


def settings_of(point: Point, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of a table's columns of settings; NaN where a run has no such setting."""
    own = {}
    for name in names:
        scope, _, field = name.rpartition(".")
        config = point.config
        sections = {
            "": (config.loop, config.sizes), "agent": (config.agent_options,),
            "env": (config.env_options,), "replay": (config.replay_options,),
        }[scope]  # fmt: skip
        value = next((getattr(each, field) for each in sections if hasattr(each, field)), None)
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        has = any(hasattr(each, field) for each in sections)
        own[name] = value if plain else (shown_value(value) if has else math.nan)
    return own


def begin(
    folder: Path,
    points: Sequence[Point],
    command: Sequence[str],
    columns: Sequence[str],
    base_points: Mapping[str, Mapping[str, str]],
    search: Mapping[str, Any] | None = None,
    study: Mapping[str, Any] | None = None,
) -> Store:
    """Return the store of a sweep of which nothing has run; nothing is written.

    Args:
      folder: the sweep's.
      points: all of it, as far as they are known.
      command: that asks for it again; it is shown, and never read.
      columns: metrics to keep; (): all.
      base_points: task -> label -> the point that is its method without the grid.
      search: what it looks for, and how; None: it is no search.
      study: what `--resume` goes on with; None: the command line has to give it all again.
    """
    facts = {
        "command": list(command),
        "code": code_version(),
        "versions": versions(),
        "settings": sorted({place.name for point in points for place in point.settings}),
        "columns": list(columns),
        "base_points": {env: dict(own) for env, own in base_points.items()},
        "points": {point.id: _plain(point) for point in points},
        "costs": [],
        "failed": {},
    }
    if search is not None:
        facts["search"] = {"asked": search}
    if study is not None:
        facts["study"] = study
    return _store(folder, facts)


def resumed(
    folder: Path,
    points: Sequence[Point],
    columns: Sequence[str],
    other_code: bool = False,
    search: Mapping[str, Any] | None = None,
) -> Store:
    """Read the store of a sweep that has begun, which must be this one; `search` as in `begin`.

    Raises:
      Damaged: a file can't be read, or is not what was written.
      ValueError: one line: it is another sweep, or another version of the code began it.
    """
    store = read(folder)
    known, asked = store.facts["points"], {point.id: _plain(point) for point in points}
    choose = "choose another --out"
    before = store.facts.get("search", {}).get("asked", {})
    now = search or {}
    differs = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if differs:
        raise ValueError(
            f"the sweep in {folder} began with other values of {', '.join(differs)}: give its own "
            f"options, or {choose}"
        )
    if not set(asked) <= set(known) or (search is None and set(known) != set(asked)):
        other = next(iter(sorted(set(known) ^ set(asked))))
        has = "has no" if other in asked else "also has"
        raise ValueError(
            f"the sweep in {folder} {has} '{other}': give its own options, or {choose}"
        )
    for name, own in asked.items():
        differs = same_config.differing(known[name]["config"], own["config"])
        if differs:
            raise ValueError(
                f"the sweep in {folder} ran '{name}' with other values of {', '.join(differs)}: "
                f"give its own options, or {choose}"
            )
    if list(columns) != store.facts["columns"]:
        raise ValueError(f"the sweep in {folder} keeps other metrics: leave out --keep")
    if store.facts["code"] != code_version() and not other_code:
        raise ValueError(
            f"another version of the code or other settings of JAX began the sweep in {folder} "
            f"({store.facts['code']}, and this is {code_version()}): go back to those, {choose}, "
            "or add --other-code true"
        )
    if store.facts["code"] != code_version():
        store.facts["code"] = f"{store.facts['code']}+{code_version()}"
    if search is None:
        store.facts["failed"] = {}  # they are tried again
    return store


def read(folder: Path) -> Store:
    """Read a sweep's results, be it at work or ended.

    Raises:
      Damaged: a file can't be read, or is not what was written.
      ValueError: there is none, or a later version made it.
    """
    path = folder / FACTS
    if not path.exists():
        raise ValueError(f"{folder} holds no results of a sweep: give the folder of a sweep")
    facts = stored.read_facts(path, FORMAT)
    facts_.check(path, facts)
    expected = facts.pop("crc32")
    del facts["format"]
    store = _store(folder, facts)
    # The first table may not have come to be written.
    if len(expected) > 1 or (folder / TABLE).exists():
        found = stored.decode(folder / TABLE, expected, path)
        facts_.check_table(folder / TABLE, found.frame, facts)
        store.frame, store.crc32 = _typed(found.frame, store.settings), found.crc32
    return store


def _store(folder: Path, facts: dict[str, Any]) -> Store:
    return Store(folder, facts, _order(facts), tuple(facts["settings"]), tuple(facts["columns"]))


def _order(facts: Mapping[str, Any]) -> dict[str, int]:
    return {name: place for place, name in enumerate(facts["points"])}


def _typed(frame: pd.DataFrame, settings: Sequence[str]) -> pd.DataFrame:
    """Return what was read with settings as they were before they were written."""
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
        "config": point.config.to_json(),
    }  # fmt: skip
