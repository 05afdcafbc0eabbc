"""Summary and figures of a finished run: written, read and checked."""

import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from experiments.runs import manifest, registry, tables
from experiments.runs.log import waiting
from experiments.runs.run_config import OutputConfig, RunConfig
from experiments.statistics import statistics
from experiments.storage import files, kinds, stored

_MAYBE = kinds.optional(kinds.number)
_SUMMARY = {
    "env": kinds.text, "agent": kinds.text, "replay": kinds.text,
    "seeds": kinds.many(kinds.whole), "final_step": kinds.whole,
    "final_return": kinds.many(_MAYBE), "final_iqm": _MAYBE,
    "final_interval": kinds.many(_MAYBE, 2), "threshold": _MAYBE,
    "steps_per_second": kinds.number, "train_seconds": kinds.number,
    "diverged?": kinds.list_of(kinds.whole), "versions?": kinds.dict_of(kinds.text),
    "metrics_crc32?": kinds.whole,
}  # fmt: skip
_SOLVED = {"reached": kinds.whole, "median_steps_to_threshold": _MAYBE}


def conclude(config: RunConfig, out: Path, output: OutputConfig) -> dict[str, Any]:
    """Write the summary of a finished run and, if chosen, its figures; return the summary."""
    frame = pd.read_csv(out / "metrics.csv")
    threshold = threshold_of(config, output)
    summary = {
        "env": config.env,
        "agent": config.agent,
        "replay": config.replay,
        **statistics.summarise(frame, threshold),
        **_speed(pd.read_csv(out / "timing.csv")),
        "versions": {**versions(), "code": "+".join(manifest.read(out).code)},
        "metrics_crc32": zlib.crc32((out / "metrics.csv").read_bytes()),
    }
    manifest.write_json(out / "summary.json", summary)
    if output.figures:
        with waiting(f"{config.replay}: drawing the figures"):
            _draw(config, frame, out, threshold)
    return summary


def threshold_of(config: RunConfig, output: OutputConfig) -> float | None:
    """Return the chosen threshold of the return, by default that of the environment."""
    return registry.THRESHOLDS.get(config.env) if output.threshold is None else output.threshold


def versions() -> dict[str, str]:
    """Return the device and the versions of packages that may change numbers."""
    return {
        "device": jax.devices()[0].device_kind,
        "python": ".".join(map(str, sys.version_info[:3])),
        "jax": jax.__version__,
    }


def _draw(config: RunConfig, frame: pd.DataFrame, out: Path, threshold: float | None) -> None:
    from experiments.figures import panels  # importing matplotlib takes half a second

    title = f"{config.agent} with {config.replay} replay on {config.env}"
    frames, methods = {config.replay: frame}, {config.replay: config.replay}
    panels.during_training(frames, methods, out, title, threshold, curves="learning_curve")


def _speed(timing: pd.DataFrame) -> dict[str, float]:
    return {
        "steps_per_second": float(timing["steps_per_second"].median()),
        "train_seconds": float(timing["seconds"].sum()),
    }


def read_summary(run: Path) -> dict[str, Any] | None:
    """Return the summary of a run, or None if the run has not ended.

    Raises:
      Damaged: the file is damaged, or a field is missing or has the wrong type.
    """
    path, remedy = run / "summary.json", f"--resume {run} writes it again"
    if not path.is_file():
        return None
    summary = files.read_json(path, _SUMMARY, remedy=remedy)
    with files.reading(path, remedy):
        if summary["threshold"] is not None:
            kinds.check(summary, _SOLVED)
        if len(summary["final_return"]) != len(summary["seeds"]):
            raise ValueError("numbers of seeds and returns differ")
    return summary


def read_metrics(run: Path, summary: Mapping[str, Any]) -> pd.DataFrame:
    """Return the metrics of a run, and check that the summary belongs to them.

    Raises:
      ValueError: rows are missing, repeated, damaged or edited.
    """
    path = run / "metrics.csv"
    content = files.read_bytes(path)
    if summary.get("metrics_crc32") not in (None, zlib.crc32(content)):
        raise ValueError(f"{path} was edited after the run: restore it")
    frame = stored.parse(path, content, ("seed", "step", "eval_return"))
    if frame.duplicated(["seed", "step"]).any() or frame["seed"].value_counts().nunique() > 1:
        raise ValueError(f"{path} has a row twice, or lacks one: restore it")
    return frame


def read_times(path: Path) -> pd.DataFrame | None:
    """Return the table in `timing.csv`, or None if it has no rows."""
    columns = ("step", "seconds", "steps_per_second")
    return tables.read_table(path, columns, manifest.beginning)


def recompute(
    summary: Mapping[str, Any], frame: pd.DataFrame, timing: pd.DataFrame | None
) -> dict[str, Any]:
    """Return a summary with numbers recomputed from tables of metrics and, if given, times."""
    speed = {} if timing is None else _speed(timing)
    return {**summary, **statistics.summarise(frame, summary["threshold"]), **speed}
