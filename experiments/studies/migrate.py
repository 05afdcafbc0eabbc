"""Convert folders of sweeps from before studies: `python -m experiments.studies.migrate DIR ...`.

The table keeps its numbers, byte for byte, under its new name. This module will be removed in the
release after next.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.analysis import stored
from experiments.analysis.files import write_bytes, write_json
from experiments.runs import manifest
from experiments.studies import store
from experiments.studies.grid import shown_value
from experiments.studies.options import Question, SearchOptions, StudyOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.migrate")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder of a sweep")
    for folder in parser.parse_args(argv).folders:
        try:
            migrate(folder)
        except ValueError as error:
            parser.error(str(error))
        print(f"{folder}: converted")
    return 0


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
