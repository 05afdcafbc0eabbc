"""What a finished run leaves in its folder: its summary and figures."""

import sys
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from experiments.analysis import statistics
from experiments.runs import checksums, finished, manifest, registry
from experiments.runs.outputs import OutputConfig
from experiments.runs.run_config import RunConfig
from experiments.runs.waiting import waiting


def conclude(config: RunConfig, out: Path, output: OutputConfig) -> dict[str, Any]:
    """Write the summary of a finished run, and its figures if wanted; return the summary."""
    frame = pd.read_csv(out / "metrics.csv")
    timing = pd.read_csv(out / "timing.csv")
    threshold = threshold_of(config, output)
    summary = {
        "env": config.env,
        "agent": config.agent,
        "replay": config.replay,
        **statistics.summarise(frame, threshold),
        **finished.speed(timing),
        "versions": {**versions(), "code": "+".join(manifest.made_by(out))},
        "metrics_crc32": finished.checksum(out),
    }
    for name in ("metrics.csv", "timing.csv"):
        checksums.note(out, {name: [checksums.of((out / name).read_bytes())]})
    checksums.write_json(out / "summary.json", summary)
    if output.figures:
        with waiting(f"{config.replay}: drawing the figures"):
            _draw(config, frame, out, threshold)
    return summary


def threshold_of(config: RunConfig, output: OutputConfig) -> float | None:
    """Return the return that counts as solved: the one asked for, or the environment's own."""
    if output.threshold is not None:
        return output.threshold
    return registry.THRESHOLDS.get(config.env)


def versions() -> dict[str, str]:
    """Return what numbers may depend on: device and versions."""
    return {
        "device": jax.devices()[0].device_kind,
        "python": ".".join(map(str, sys.version_info[:3])),
        "jax": jax.__version__,
    }


def _draw(config: RunConfig, frame: pd.DataFrame, out: Path, threshold: float | None) -> None:
    from experiments.analysis import curves, panels  # matplotlib takes half a second to import
    from experiments.analysis.style import plain

    label = plain(config.replay)
    title = plain(f"{config.agent} with {config.replay} replay on {config.env}")
    curves.learning_curves({label: frame}, out / "learning_curve.png", title, threshold)
    panels.replayed({label: frame}, out / "replayed.png", f"What is replayed: {title}")
    panels.own_metrics({label: frame}, out / "own_metrics.png", title)
