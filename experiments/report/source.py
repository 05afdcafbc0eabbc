"""The data of a page or a plot of runs, read from their folders.

Statistics are recomputed from the tables. The environments and methods of the runs need not be
installed. Unfinished runs are read up to their last log point.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.runs import manifest, results, run_config, tables
from experiments.storage import files


class Arm(NamedTuple):
    """A run, which may be unfinished."""

    label: str
    folder: Path
    config: dict[str, Any]  # sections of `config.json`
    code: str  # version of the code; "" if unknown
    frame: pd.DataFrame  # metrics of complete log points
    timing: pd.DataFrame | None  # None if the file is missing
    summary: dict[str, Any] | None  # None if the run has not ended
    remarks: tuple[str, ...] = ()  # notes on edited files, one per line

    @property
    def film(self) -> Path | None:
        """Path of the film of an episode, or None."""
        path = self.folder / "episode.gif"
        return path if path.is_file() else None

    @property
    def replay(self) -> str:
        """Name of the replay method."""
        return self.config["replay"]

    @property
    def steps(self) -> int:
        """Agent steps so far."""
        return int(self.frame["step"].max())


class Source(NamedTuple):
    """The data of a page or a plot of runs."""

    arms: dict[str, Arm]

    @property
    def agent(self) -> str:
        """Names of the agents."""
        return self._distinct("agent")

    @property
    def env(self) -> str:
        """Name of the environment."""
        return self._distinct("env")

    @property
    def threshold(self) -> float | None:
        """Return that counts as solved, or None if it differs between finished runs."""
        goals = {arm.summary["threshold"] for arm in self.arms.values() if arm.summary}
        return goals.pop() if len(goals) == 1 else None

    def _distinct(self, name: str) -> str:
        return ", ".join(dict.fromkeys(arm.config[name] for arm in self.arms.values()))

    @property
    def remarks(self) -> list[str]:
        """Notes on edited files, one per line."""
        return [line for arm in self.arms.values() for line in arm.remarks]


def runs(folders: Mapping[str, Path], other_code: bool) -> Source:
    """Read folders of finished or unfinished runs.

    Args:
      folders: folders by label.
      other_code: whether runs of different versions of the code may be mixed.

    Raises:
      ValueError: there is no run, a file is damaged, nothing has been logged yet, or the runs
        cannot share a figure.
    """
    arms = {}
    for label, folder in folders.items():
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"{folder} contains no run or study: give folders that train, compare or sweep "
                "wrote"
            )
        arms[label] = _arm(label, folder)
    _check_alike(arms, other_code)
    return Source(arms)


def _check_alike(arms: Mapping[str, Arm], other_code: bool) -> None:
    """Raise ValueError if runs must not be shown together."""
    code = "versions of the code or settings of JAX"
    for name, found, advice in (
        ("environments", {label: arm.config["env"] for label, arm in arms.items()},
         "show each apart"),
        (code, {label: arm.code or "none" for label, arm in arms.items()},
         "train them again, or add --other-code"),
    ):  # fmt: skip
        if len(set(found.values())) > 1 and not (name == code and other_code):
            shown = ", ".join(f"{label} {value}" for label, value in found.items())
            raise ValueError(f"the runs are of different {name} ({shown}): {advice}")


def _arm(label: str, folder: Path) -> Arm:
    """Read a run's folder.

    Raises:
      ValueError: a file is damaged, or there is no log point yet.
    """
    config = files.read_json(folder / "config.json")
    with files.reading(folder / "config.json", "restore it"):
        run_config.check_saved(config)
    summary = results.read_summary(folder)
    metrics, remarks = folder / "metrics.csv", manifest.differing(folder)
    timing = results.read_times(folder / "timing.csv")
    if summary is not None and metrics.is_file():
        frame = results.read_metrics(folder, summary)
        summary = results.recompute(summary, frame, timing)
    else:
        frame, more = _so_far(metrics)
        remarks += more
    if frame is None:
        raise ValueError(f"{folder} holds no log point yet: wait for the first")
    code = (summary or {}).get("versions", {}).get("code") or "+".join(manifest.read(folder).code)
    return Arm(label, folder, config, code, frame, timing, summary, tuple(remarks))


def _so_far(path: Path) -> tuple[pd.DataFrame | None, list[str]]:
    """Read the metrics of an unfinished run, and notes on its files.

    Log points that some seeds lack are dropped, since another process may be writing the last one.
    """
    columns, remarks = ("seed", "step", "eval_return"), []
    frame = tables.read_table(path, columns, manifest.beginning)
    if frame is None:
        return None, remarks
    every = tables.read_table(path, columns)
    if every is not None and every.duplicated(["seed", "step"]).any():
        remarks.append(f"{path} has rows that are doubled: the first of each is shown")
        frame = frame.drop_duplicates(["seed", "step"])
    rows = frame.groupby("step")["seed"].transform("size")
    frame = frame[rows == frame["seed"].nunique()]
    return (None if frame.empty else frame), remarks
