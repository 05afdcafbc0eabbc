"""A run's folder: what lies in it, and who may use it.

It holds `config.json`, `metrics.csv` (one row per log point and seed, deterministic), `timing.csv`,
`checkpoints/`, `tensorboard/`, and at the end `summary.json`, `learning_curve.png`, `replayed.png`
and `own_metrics.png`.
"""

import json
import shutil
from pathlib import Path

from experiments.analysis.files import write_json
from experiments.runs import checkpoint
from experiments.runs.run_config import RunConfig

ARTEFACTS = (
    "config.json", "metrics.csv", "timing.csv", "summary.json", "learning_curve.png",
    "replayed.png", "own_metrics.png", "episode.gif", "episode.mp4", "checkpoints", "tensorboard",
    "wandb",
)  # fmt: skip


def check_claim(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that this run may not use; change nothing.

    Raises:
      ValueError: the folder holds a run and neither `resume` nor `overwrite` is given, or the run
        to resume is not there or has another configuration.
    """
    saved = out / "config.json"
    if resume and not saved.exists():
        raise ValueError(f"{out} holds no run to resume: give the folder of a run")
    if resume:
        before = RunConfig.from_json(json.loads(saved.read_text()))
        checkpoint.check_same_config(before.to_json(), config.to_json(), out)
    elif saved.exists() and not overwrite:
        raise ValueError(
            f"{out} already holds a run: add --overwrite, or --resume {out}, "
            "or choose another --out"
        )


def claim(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Make `out` this run's folder, never destroying another run unasked.

    Raises:
      ValueError: as `check_claim`.
    """
    check_claim(out, config, resume=resume, overwrite=overwrite)
    if resume:
        return
    for name in ARTEFACTS:
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config.to_json())
