"""Convert results from before studies: `python -m experiments.papers.migrate DIR ...`.

DIR is the folder of a sweep, or a folder of tables that `experiments.papers run` wrote. Tables keep
their numbers. This module will be removed in the release after next.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.registry import ENTRIES, claims_about, sources
from experiments.runs import manifest
from experiments.storage import stored
from experiments.storage.files import write_bytes, write_json
from experiments.studies import grid, store
from experiments.studies.grid import Point, shown_value
from experiments.studies.options import Question, SearchOptions, StudyOptions
from experiments.studies.study import Study


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.papers.migrate")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder of results")
    for folder in parser.parse_args(argv).folders:
        try:
            if (folder / "sweep.json").is_file():
                migrate(folder)
                print(f"{folder}: converted")
            else:
                for path in migrate_tables(folder):
                    print(f"{path}: converted")
        except ValueError as error:
            parser.error(str(error))
    return 0


def migrate_tables(folder: Path) -> list[Path]:
    """Convert the tables of experiments that `experiments.papers run` wrote; return the studies.

    Raises:
      ValueError: If the folder has none.
    """
    converted = []
    experiments = {
        own.name: own for own in sources(ENTRIES.values()).values() if isinstance(own, Experiment)
    }
    for path in sorted(folder.glob("*.*.json")):
        name, _, size = path.stem.rpartition(".")
        source = experiments.get(name)
        if source is None or size not in source.sizes:
            continue
        chosen: SizeName = size  # pyright: ignore[reportAssignmentType]
        facts = stored.read_facts(path, 1)
        if "runs" not in facts:
            continue
        table = path.with_name(f"{name}.{size}.csv.gz")
        frame = stored.decode(table, {facts["crc32"]}, path).frame
        out = folder / f"{name}.{size}"
        _convert(
            source.study(chosen, claims_about(source)), source.points(chosen), facts, frame, out
        )
        path.unlink()
        table.unlink()
        converted.append(out)
    if not converted:
        raise ValueError(f"{folder} contains neither sweep.json nor tables of experiments")
    return converted


def _convert(
    study: Study,
    points: Mapping[str, Mapping[str, Point]],
    facts: Mapping[str, Any],
    frame: pd.DataFrame,
    out: Path,
) -> None:
    """Write the study of an experiment from its table."""
    out.mkdir(exist_ok=True)
    every = [point for own in points.values() for point in own.values()]
    results = store.begin(out, study, every, grid.base_points(every, study.bases))
    manifest.write(out, manifest.Manifest("study"))
    for env, own in facts["runs"].items():
        for label, made in own.items():
            point, versions = points[env][label], dict(made["versions"])
            mine = frame[(frame["env"] == env) & (frame["arm"] == label)]
            known = results.facts["points"][point.id]
            known |= {"code": versions.pop("code").split("+"), "config": made["config"]}
            results.facts["versions"] = versions
            seeds = sorted(int(seed) for seed in mine["seed"].unique())
            results.facts["costs"].append({
                "runs": {point.id: seeds}, "seconds": made["train_seconds"], "compiling": 0.0,
                "width": len(seeds), "bytes": 0, "inputs": [],
            })  # fmt: skip
            head = {"point": point.id, "replay": point.label, "agent": point.config.agent,
                    "method": point.config.replay,
                    **store.settings_of(point, results.settings)}  # fmt: skip
            results.waiting.append(mine.drop(columns="arm").assign(**head))
    results.write()
    store.read(out)


def migrate(folder: Path) -> None:
    """Convert the folder of a sweep.

    Raises:
      ValueError: If it does not contain a sweep of format 1.
    """
    old = folder / "sweep.json"
    if not old.is_file():
        raise ValueError(f"{folder} does not contain sweep.json: use the folder of a sweep")
    facts = stored.read_facts(old, 1)
    words = [str(word) for word in facts.pop("command")]
    code = facts.pop("code").split("+")
    for point in facts["points"].values():
        point["code"] = list(code)
    facts["study"] = _study(facts, words)
    table, path = store.paths(folder)
    write_bytes(table, (folder / "sweep.csv.gz").read_bytes())
    write_json(path, facts | {"format": store.FORMAT})
    manifest.write(folder, manifest.Manifest("study"))
    for name in ("sweep.json", "sweep.csv.gz"):
        (folder / name).unlink()
    if (folder / "sweep.md").is_file():
        (folder / "sweep.md").rename(folder / "study.md")
    store.read(folder)


def _study(facts: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the study of a sweep, from its points and the words of its command."""
    bases: dict[str, dict[str, Any]] = {}
    for point in facts["points"].values():
        bases.setdefault(point["env"], {}).setdefault(point["replay"], point["config"])
    for env, own in facts["base_points"].items():
        for label, point in own.items():
            bases[env][label] = facts["points"][point]["config"]
    given = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            given[word[2:].replace("-", "_")] = words[place + 1 : place + 2]
    primary, threshold = given.get("primary", ["auc"])[0], given.get("threshold")
    question = dataclasses.replace(Question(), primary=primary, control=False)
    options = dataclasses.replace(
        StudyOptions(),
        threshold=float(threshold[0]) if threshold else None,
        keep=tuple(facts["columns"]) or None,
    )
    asked, search, axes = facts.get("search", {}).get("asked"), SearchOptions(), {}
    if asked is not None:
        name = asked["search"].partition(" ")[0]
        search = dataclasses.replace(
            search, search=name, trials=asked["trials"], at_once=asked["at_once"],
            fresh_seeds=len(asked["fresh_seeds"]),
        )  # fmt: skip
        for own in (own for labels in asked["space"].values() for own in labels.values()):
            axes |= {name: text.split(",") for name, text in own.items()}
    else:
        for point in facts["points"].values():
            for name, value in point["settings"].items():
                text = shown_value(tuple(value) if isinstance(value, list) else value)
                if text not in axes.setdefault(name, []):
                    axes[name].append(text)
    return {
        "bases": bases, "axes": axes, "question": dataclasses.asdict(question),
        "options": dataclasses.asdict(options), "search": dataclasses.asdict(search),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
