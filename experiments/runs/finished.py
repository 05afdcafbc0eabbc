"""Reading what runs left: their summaries and metrics, and whether they may be shown together."""

import io
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.analysis import files, kinds, statistics

_MAYBE = kinds.optional(kinds.number)
_SUMMARY = {
    "env": kinds.text, "agent": kinds.text, "replay": kinds.text,
    "seeds": kinds.many(kinds.whole), "final_step": kinds.whole,
    "final_return": kinds.many(_MAYBE), "final_iqm": _MAYBE,
    "final_interval": kinds.many(_MAYBE, 2), "threshold": _MAYBE,
    "steps_per_second": kinds.number, "train_seconds": kinds.number,
    "diverged?": kinds.listed(kinds.whole), "versions?": kinds.named(kinds.text),
    "metrics_crc32?": kinds.whole,
}  # fmt: skip
_SOLVED = {"reached": kinds.whole, "median_steps_to_threshold": _MAYBE}


class Made(NamedTuple):
    """What runs must have in common to be shown together."""

    env: str
    code: str  # version of the code, and settings of JAX, that trained the run


def speed(timing: pd.DataFrame) -> dict[str, float]:
    """Return what the times of a run's log points come to."""
    return {
        "steps_per_second": float(timing["steps_per_second"].median()),
        "train_seconds": float(timing["seconds"].sum()),
    }


def recomputed(
    summary: Mapping[str, Any], frame: pd.DataFrame, timing: pd.DataFrame | None, path: Path
) -> tuple[dict[str, Any], list[str]]:
    """Return a summary with the numbers that its tables give, and a line about any that it had not.

    Args:
      summary: as it was read.
      frame: the run's metrics.
      timing: its times; None: they are not kept.
      path: of the summary, for the line.
    """
    own = statistics.summarise(frame, summary["threshold"])
    own |= {} if timing is None else speed(timing)
    # The ends of an interval of few seeds are ties, which the last digit may move.
    known = [name for name in own if name in summary and name != "final_interval"]
    differs = [name for name in known if not alike(summary[name], own[name])]
    lines = [f"{path} has another {', '.join(differs)} than the tables: theirs is shown"]
    return {**summary, **own}, lines * bool(differs)


def alike(one: Any, other: Any) -> bool:
    """Tell whether saved values are the same but for the last digits of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(alike(one[name], other[name]) for name in one.keys() & other.keys())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    numbers = all(isinstance(each, (int, float)) for each in (one, other))
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12) if numbers else one == other


def check_alike(runs: Mapping[str, Made], other_code: bool, mend: str = "plot each apart") -> None:
    """Refuse runs that don't belong into one figure.

    Args:
      runs: by label.
      other_code: the user joins results of several versions of the code or settings of JAX.
      mend: what to do with runs of different environments.

    Raises:
      ValueError: one line: their environments differ, or the versions of the code, or JAX's
        settings.
    """
    code = "versions of the code or settings of JAX"
    for what, key in (("environments", "env"), (code, "code")):
        found = {label: getattr(run, key) for label, run in runs.items()}
        if len(set(found.values())) > 1 and not (key == "code" and other_code):
            shown = ", ".join(f"{label} {value}" for label, value in found.items())
            advice = mend if key == "env" else "train anew, or add --other-code"
            raise ValueError(f"the runs are of different {what} ({shown}): {advice}")


def made(summary: Mapping[str, Any]) -> Made:
    """Return what the summary of a run says about where it comes from."""
    return Made(summary["env"], summary.get("versions", {}).get("code", "none"))


def read_summary(run: Path) -> dict[str, Any]:
    """Read the summary of a run that has ended.

    Raises:
      ValueError: one line: there is no run, it has not ended, or the file is damaged.
    """
    path = run / "summary.json"
    if not (run / "metrics.csv").exists():
        raise ValueError(f"{run} holds no run: give folders of runs")
    if not path.exists():
        raise ValueError(f"the run in {run} has not ended: finish it with --resume {run}")
    try:
        summary = files.read_json(path)
    except files.Unreadable as error:
        raise ValueError(f"{path} is damaged ({error}): --resume {run} writes it anew") from error
    check_summary(path, summary)
    return summary


def check_summary(path: Path, summary: Any) -> None:
    """Refuse a run's summary, read from a file, that lacks a field or has one of the wrong kind.

    Raises:
      ValueError: one line that names the field.
    """
    if not isinstance(summary, dict):
        raise ValueError(f"{path} is damaged (no JSON object): restore it")
    kinds.check(str(path), summary, _SUMMARY)
    if summary["threshold"] is not None:
        kinds.check(str(path), summary, _SOLVED)
    if len(summary["final_return"]) != len(summary["seeds"]):
        raise ValueError(f"{path} is damaged (seeds and returns differ in number): restore it")


def checksum(run: Path) -> int:
    """Return that of a run's metrics, which its summary keeps."""
    return zlib.crc32(files.read_bytes(run / "metrics.csv"))


def read_metrics(run: Path, summary: Mapping[str, Any]) -> pd.DataFrame:
    """Read a run's metrics, and see that they are those of its summary.

    Raises:
      ValueError: rows are missing, doubled or damaged, or numbers are others than the run wrote.
    """
    path = run / "metrics.csv"
    try:
        frame = pd.read_csv(io.BytesIO(files.read_bytes(path)))
        steps = [frame.loc[frame["seed"] == seed, "step"].tolist() for seed in summary["seeds"]]
        whole = len(frame) == sum(map(len, steps)) and all(
            each == steps[0] and sorted(set(each)) == each and each[-1:] == [summary["final_step"]]
            for each in steps
        )
    except (ValueError, KeyError) as error:  # pandas' errors are ValueErrors
        raise ValueError(f"{path} is damaged ({error}): restore it") from error
    if not whole:
        raise ValueError(f"{path} has rows that are missing or doubled: restore it")
    if summary.get("metrics_crc32") not in (None, checksum(run)):
        raise ValueError(f"{path} is not as the run wrote it: restore it")
    return frame
