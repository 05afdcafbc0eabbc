"""Runs of a study that do not compile into one program: environments or replays on the host.

They train as in `experiments.train`, in folders `unfinished_runs/POINT.SEED`, and resume from the
checkpoints there. At the end, their metrics move into the table of the study.
"""

import dataclasses
import itertools
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from experiments.runs import code, folder, manifest, results
from experiments.runs.interrupt import Stopped
from experiments.runs.run import execute
from experiments.runs.run_config import OutputConfig
from experiments.studies.grid import Point
from experiments.studies.options import Where
from experiments.studies.store import SeededPoint, Store

RUNS = "unfinished_runs"  # subfolder of the study; `runs` could be a folder of the user
_OUTPUT = OutputConfig(tensorboard=False, figures=False)


def carry_out(runs: Sequence[SeededPoint], store: Store, where: Where) -> None:
    """Train the missing runs of all points, one point after another, and store their results.

    Raises:
      Stopped: If the user interrupts the runs, or an environment fails. Ended runs are kept.
    """
    batches = _batches(runs)
    discard(store.folder, {_name(point, first) for point, first, _ in batches})
    for point, first, count in batches:
        config = dataclasses.replace(point.config, seed=first, seeds=count)
        out = store.folder / RUNS / _name(point, first)
        output = dataclasses.replace(_OUTPUT, other_code=where.other_code)
        try:
            summary = execute(
                config, out, output, resume=manifest.is_run(out), label=point.id,
                resume_folder=store.folder, devices=where.device_count,
            )  # fmt: skip
        except Stopped:
            store.write()
            raise
        frame = results.read_metrics(out, summary)
        ended = [
            ((point, int(seed)), own.drop(columns="seed").reset_index(drop=True))  # pyright: ignore[reportArgumentType]
            for seed, own in frame.groupby("seed")
        ]
        cost = {
            "runs": {point.id: [seed for (_, seed), _ in ended]},
            "seconds": round(summary["train_seconds"], 2), "compiling": 0.0, "width": count,
            "bytes": 0, "inputs": [],
        }  # fmt: skip
        known = store.facts["points"][point.id]["code"]
        others = set(manifest.read(out).code) - {code.version()}
        known += sorted(others - set(known))
        store.add(ended, cost)
        store.write()
        folder.discard(out)


def discard(out: Path, kept: Collection[str] = ()) -> None:
    """Remove the folders of runs of a study, except those with names in `kept`."""
    for path in sorted((out / RUNS).glob("*")):
        if path.name not in kept and not path.is_symlink() and manifest.is_run(path):
            folder.discard(path)


def _name(point: Point, first: int) -> str:
    """Return the name of the folder of a run."""
    plain = re.sub(r"[^\w.=-]+", "_", point.id)
    return f"{plain}.{first}"


def _batches(runs: Sequence[SeededPoint]) -> list[tuple[Point, int, int]]:
    """Return points with their first seed and number of seeds, contiguous seeds together."""
    found = []
    places = itertools.groupby(enumerate(runs), lambda at: (at[1][0].id, at[1][1] - at[0]))
    for _, own in places:
        batch = [run for _, run in own]
        found.append((*batch[0], len(batch)))
    return found
