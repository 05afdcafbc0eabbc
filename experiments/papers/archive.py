"""Files with the tables of experiments and computations: numbers and their origin."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.files import kinds, tables
from experiments.files.disk import read_json, write_bytes, write_json
from experiments.studies import store
from experiments.studies.store import Store

FORMAT = 1
_FACTS = {
    "made": kinds.record({
        "options": kinds.dict_of(kinds.anything), "versions": kinds.record({"code": kinds.text}),
        "seconds?": kinds.number,
    }),
}  # fmt: skip
# Metrics of every table, from which verdicts see whether a method had an effect.
KEPT = ("replayed/effective_buffer", "replay/sampler_updates")


@dataclasses.dataclass(frozen=True)
class Data:
    """Table of an experiment or a computation, and the origin of its numbers.

    Attributes:
      frame: the table. The table of an experiment has one row per log point, with columns env, arm,
        seed, step, eval_return, diverged (1 if the seed ever diverged) and metrics. The table of a
        computation has its own columns.
      runs: task -> arm -> configuration, versions and duration in seconds; experiments only.
      made: options, versions and duration in seconds; computations only.
      store: the study with its saved runs; experiments only.
    """

    frame: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)
    runs: Mapping[str, Mapping[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    made: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    store: Store | None = None

    def frames(self, env: str) -> dict[str, pd.DataFrame]:
        """Return the metrics of the runs on a task, by arm."""
        frame = self.frame[self.frame["env"] == env] if len(self.frame) else self.frame
        return {
            label: frame[frame["arm"] == label].dropna(axis=1, how="all").reset_index(drop=True)
            for label in self.runs.get(env, {})
        }

    def codes(self) -> tuple[str, ...]:
        """Return the versions of the code that made the numbers, in alphabetical order."""
        return tuple(sorted({facts["versions"]["code"] for facts in self.facts()}))

    def facts(self) -> list[Mapping[str, Any]]:
        """Return the origin: `[made]` of a computation, or each arm's value in `runs`."""
        by_env = self.runs.values()
        return [self.made] if self.made else [facts for runs in by_env for facts in runs.values()]


def select_rows(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows in which columns have the values in `where`."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame


def of_study(results: Store) -> Data:
    """Return the results of a study as Data."""
    columns = ("env", "arm", "seed", "step", "eval_return", "diverged")
    table, names = results.table, {}
    for point, facts in results.facts["points"].items():
        every = facts["settings"].get("learn_every")
        names[point] = facts["replay"] + (f"_every{every}" if every is not None else "")
    if len(table):
        table = table.assign(arm=table["point"].map(names))
        table = table.sort_values(["env", "arm", "seed", "step"], ignore_index=True)
        kept = sorted(set(results.facts["columns"]) & set(table))
        table = table[[*columns, *kept]]
    runs: dict[str, dict[str, Any]] = {}
    ended = {point for point, _ in results.ended()}
    for point, made in results.made().items():
        if point in ended:
            facts = results.facts["points"][point]
            runs.setdefault(facts["env"], {})[names[point]] = {
                "config": facts["config"],
                "versions": {**results.facts["versions"], "code": made["code"]},
                "train_seconds": made["train_seconds"],
            }
    return Data(table, runs, store=results)


def study_folder(folder: Path, name: str, size: str) -> Path:
    """Return the folder of the study of an experiment."""
    return folder / f"{name}.{size}"


def paths(folder: Path, name: str, size: str) -> tuple[tuple[Path, Path], tuple[Path, Path]]:
    """Return the paths of numbers and origin, first of a computation, then of a study."""
    computation = folder / f"{name}.{size}.csv.gz", folder / f"{name}.{size}.json"
    return computation, store.paths(study_folder(folder, name, size))


def write(folder: Path, name: str, size: str, data: Data) -> None:
    """Write the table of a computation; each of its two files is written atomically."""
    numbers, facts = paths(folder, name, size)[0]
    # `read` ignores facts without numbers, as a killed process may leave them.
    numbers.unlink(missing_ok=True)
    write_json(facts, {"format": FORMAT, "made": data.made})
    write_bytes(numbers, tables.encode(data.frame, digits=6))


def read(folder: Path, name: str, size: str) -> Data | None:
    """Read the table of an experiment or a computation; return None if there is none.

    Raises:
      Damaged: a file is damaged.
      ValueError: a later version wrote the table.
    """
    (numbers, facts), study = paths(folder, name, size)
    if study[1].exists():
        return of_study(store.read(study[1].parent))
    if not numbers.exists() and not facts.exists():
        return None
    saved = read_json(facts, _FACTS, latest=FORMAT)
    if not numbers.exists():
        return None
    return Data(tables.decode(numbers), made=saved["made"])
