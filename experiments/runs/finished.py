"""Reading what runs left: their summaries and metrics, and whether they may be shown together."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

_NEEDED = ("agent", "env", "seeds", "final_step", "threshold")


class Made(NamedTuple):
    """What runs must have in common to be shown together."""

    env: str
    code: str  # version of the code, and settings of JAX, that trained the run


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
        summary = json.loads(path.read_text())
        missing = set(_NEEDED) - set(summary)
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): --resume {run} writes it anew") from error
    if missing:
        raise ValueError(f"{path} lacks {sorted(missing)[0]}: --resume {run} writes it anew")
    return summary


def checksum(run: Path) -> int:
    """Return that of a run's metrics, which its summary keeps."""
    return zlib.crc32((run / "metrics.csv").read_bytes())


def read_metrics(run: Path, summary: Mapping[str, Any]) -> pd.DataFrame:
    """Read a run's metrics, and see that they are those of its summary.

    Raises:
      ValueError: rows are missing, doubled or damaged, or numbers are others than the run wrote.
    """
    path = run / "metrics.csv"
    try:
        frame = pd.read_csv(path)
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
