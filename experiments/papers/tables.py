"""Tables of experiments and computations: one file of numbers, and one that says what made them."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis import statistics, stored
from experiments.analysis.files import read_json, write_bytes, write_json
from experiments.analysis.stored import Damaged

FORMAT = 1
_KEYS = ["env", "arm", "seed", "step"]
_KEPT = ("eval_return", "replayed/effective_buffer", "replay/sampler_updates")


@dataclasses.dataclass(frozen=True)
class Data:
    """Numbers, and what made them.

    Attributes:
      frame: of an experiment: columns env, arm, seed, step, eval_return, diverged (1 if the
        seed ever did) and others, a row per log point; of a computation: its own.
      runs: of an experiment: task -> label -> its configuration, versions and seconds.
      made: of a computation: its options, versions and seconds.
    """

    frame: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)
    runs: Mapping[str, Mapping[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    made: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def frames(self, env: str) -> dict[str, pd.DataFrame]:
        """Return the metrics of the runs on a task, by label."""
        own = self.frame[self.frame["env"] == env] if len(self.frame) else self.frame
        return {
            label: own[own["arm"] == label].dropna(axis=1, how="all").reset_index(drop=True)
            for label in self.runs.get(env, {})
        }

    def summaries(self, env: str) -> dict[str, Mapping[str, Any]]:
        """Return what made the runs on a task, by label."""
        return dict(self.runs.get(env, {}))

    def codes(self) -> tuple[str, ...]:
        """Return the versions of the code that made it."""
        facts = [self.made] if self.made else []
        facts += [each for runs in self.runs.values() for each in runs.values()]
        return tuple(sorted({each["versions"]["code"] for each in facts}))

    def without(self, parts: Collection[tuple[str, str]]) -> "Data":
        """Return this less some runs: (task, label); of a computation, ("", "") is all of it."""
        if self.made:
            return Data() if parts else self
        runs = {
            env: {label: made for label, made in each.items() if (env, label) not in parts}
            for env, each in self.runs.items()
        }
        frame = self.frame
        for env, label in parts:
            frame = frame[(frame["env"] != env) | (frame["arm"] != label)]
        return Data(frame, {env: each for env, each in runs.items() if each})

    def with_run(self, env: str, label: str, frame: pd.DataFrame, facts: dict[str, Any]) -> "Data":
        """Return this and one more run, in place of an older one."""
        own = frame.assign(env=env, arm=label)
        others = self.frame
        if len(others):
            others = others[(others["env"] != env) | (others["arm"] != label)]
        together = pd.concat([others, own], ignore_index=True) if len(others) else own
        together = together.sort_values(_KEYS, ignore_index=True)
        runs = {name: dict(each) for name, each in self.runs.items()}
        runs.setdefault(env, {})[label] = facts
        return dataclasses.replace(self, frame=together, runs=runs)


def thinned(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return what is kept of a run's metrics: returns, the gate's facts, and these columns."""
    lost = frame["seed"].isin(statistics.diverged(frame))
    kept = ["seed", "step", *(name for name in (*_KEPT, *columns) if name in frame)]
    return frame[list(dict.fromkeys(kept))].assign(diverged=lost.astype(int))


def paths(folder: Path, name: str, size: str) -> tuple[Path, Path]:
    """Return where a table's numbers lie, and what made them."""
    return folder / f"{name}.{size}.csv.gz", folder / f"{name}.{size}.json"


def names(folder: Path, size: str) -> list[str]:
    """Return the names of the tables of a size in a folder."""
    ending = f".{size}.json"
    return sorted(path.name.removesuffix(ending) for path in folder.glob(f"*{ending}"))


def runs(folder: Path, name: str, size: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return what made a table's runs, without their numbers.

    Raises:
      Damaged: one line that names the file.
      ValueError: a later version made it.
    """
    return _facts(paths(folder, name, size)[1])[1]


def write(folder: Path, name: str, size: str, data: Data) -> None:
    """Write a table; each of its two files is written whole or not at all."""
    numbers, facts = paths(folder, name, size)
    order = [name for name in _KEYS if name in data.frame]
    rest = sorted(column for column in data.frame if column not in order)
    frame = data.frame[order + rest] if data.runs else data.frame
    encoded = stored.encode(frame, digits=6)
    content = {"format": FORMAT, "crc32": encoded.crc32}
    content |= {"made": data.made} if data.made else {"runs": data.runs}
    write_json(facts, content)  # first: it says whose the other is
    write_bytes(numbers, encoded.content)


def is_ours(folder: Path, name: str, size: str) -> bool:
    """Tell whether what goes by a table's names, if anything does, is a table, damaged or not."""
    numbers, facts = paths(folder, name, size)
    if not facts.exists():
        return not numbers.exists()
    try:
        saved = read_json(facts)
    except ValueError:
        return False
    return isinstance(saved, dict) and "crc32" in saved and ("made" in saved or "runs" in saved)


def read(folder: Path, name: str, size: str) -> Data | None:
    """Read a table; None: there is none.

    Raises:
      Damaged: one line that names the file.
      ValueError: a later version made it.
    """
    numbers, facts = paths(folder, name, size)
    if not numbers.exists() and not facts.exists():
        return None
    for path in (numbers, facts):
        if not path.exists():
            raise Damaged(f"{path} is missing")
    crc, of_runs, made = _facts(facts)
    return Data(stored.decode(numbers, {crc}, facts).frame, of_runs, made)


def _facts(path: Path) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Read the checksum of a table's numbers, what made its runs, and what made a computation."""
    saved = stored.read_facts(path, FORMAT)
    try:
        crc, of_runs, made = saved["crc32"], saved.get("runs", {}), saved.get("made", {})
        every = [made] if made else [each for env in of_runs.values() for each in env.values()]
        for each in every:
            _ = each["versions"]["code"], each["options" if made else "config"]
    except (AttributeError, KeyError, TypeError) as error:
        raise Damaged(f"{path} is damaged ({error!r})") from None
    return crc, of_runs, made
