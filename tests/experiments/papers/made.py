"""Tables of experiments from metrics made by hand."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.papers import archive
from experiments.papers.archive import Data
from experiments.papers.entry import Experiment
from experiments.studies import store


def metrics(value: float, seeds: int = 2, steps: int = 3) -> pd.DataFrame:
    """Return metrics with returns that rise to a value."""
    return pd.DataFrame({
        "seed": np.repeat(np.arange(seeds), steps),
        "step": np.tile(1_000 * (1 + np.arange(steps)), seeds),
        "eval_return": np.tile(value * np.linspace(0, 1, steps), seeds),
        "replayed/effective_buffer": 0.5,
    })  # fmt: skip


def data_of(
    source: Experiment,
    frames: Mapping[tuple[str, str], pd.DataFrame],
    out: Path | None = None,
    codes: Mapping[tuple[str, str], str] | None = None,
) -> Data:
    """Return the table of an experiment of size small from metrics and codes by task and arm."""
    study, points = source.study("small"), source.points("small")
    out = out or Path(tempfile.mkdtemp()) / "study"
    out.mkdir()
    every = [point for own in points.values() for point in own.values()]
    results = store.begin(out, study, every, {})
    for (env, label), frame in frames.items():
        point = points[env][label]
        runs = [
            ((point, int(seed)), own.drop(columns="seed")) for seed, own in frame.groupby("seed")
        ]
        cost = {"runs": {point.id: [seed for (_, seed), _ in runs]}, "seconds": 1.0,
                "compiling": 0.0, "width": 1, "bytes": 0, "inputs": []}  # fmt: skip
        results.add(runs, cost, [(codes or {}).get((env, label), "abc")])
    results.write()
    return archive.of_study(store.read(out))
