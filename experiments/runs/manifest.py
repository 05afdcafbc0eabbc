"""`manifest.json`: the kind of a folder, which files are ours, and which code wrote them.

A run's folder contains `config.json`, `metrics.csv` (one row per log point and seed,
deterministic), `timing.csv`, `checkpoints/`, `tensorboard/`, and at the end `summary.json` and
figures. A study's contains one table of all runs, and figures.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from experiments.runs.log import EVENTS_SUFFIX
from experiments.runs.run_config import OutputConfig
from experiments.storage import kinds
from experiments.storage.files import Unreadable, read_json, write_json

FORMAT = 2  # of folders
MANIFEST = "manifest.json"
# Options that send data elsewhere or give consent: only the command line sets them, never a folder.
_FOR_THE_COMMAND_LINE = {"wandb": False, "other_code": False}
Kind = Literal["run", "plot", "study"]

_PAGE = r"report\.html"
# Regular expressions of our file names; no file of a user's matches one by chance.
FILES: Mapping[Kind, tuple[str, ...]] = {
    "run": (
        r"(config|summary|manifest)\.json", r"(metrics|timing)\.csv", _PAGE,
        r"(learning_curve|replayed|own_metrics)\.png", r"episode\.(gif|mp4)",
        r"checkpoints/step_\d{12}\.(safetensors|damaged)",
        r"checkpoints/unfinished/step_\d{12}\.safetensors",
        r"checkpoints/unfinished/\.tmp\w{6}",  # safetensors' own
        rf"tensorboard/events\.out\.tfevents\.\d+\..*{re.escape(EVENTS_SUFFIX)}",
    ),
    "plot": (
        r"(manifest|summary)\.json", r"comparison\.md",
        r"(learning_curves|replayed|own_metrics)\.png",
    ),
    "study": (
        r"(manifest|verdicts)\.json", _PAGE, r"study\.(csv\.gz|json|md)",
        r"(verdicts|sensitivity|best|trials|settings)\.png",
        r"(looks|solved|learning_curves|replayed|own_metrics)(_\d+)?\.png",
        r"unfinished/[0-9a-f]{16}\.npz",
    ),
}  # fmt: skip
_OBJECT = kinds.named(kinds.anything)


class Manifest(NamedTuple):
    """Content of `manifest.json`; by default, of a folder without one."""

    kind: Kind | None = None
    output: OutputConfig = OutputConfig()
    code: tuple[str, ...] = ()  # of a run: versions of the code that trained it, in order
    demos: str = ""  # of a run with --demos: digest of the file
    # Permitted sizes and checksums of files, by name; for tables, those of their beginning.
    checksums: Mapping[str, list[list[int]]] = MappingProxyType({})


def _is_written(value: Any) -> bool:
    return kinds.many(kinds.whole, 2)(value) and value[0] >= 0


_CONTENT = {
    "format": kinds.whole, "kind": lambda kind: isinstance(kind, str) and kind in FILES,
    "output": _OBJECT, "code?": kinds.listed(kinds.text), "demos?": kinds.text,
    "checksums?": kinds.named(kinds.listed(_is_written)),
}  # fmt: skip


def read(folder: Path | None) -> Manifest:
    """Read a folder's manifest; return the defaults if there is none.

    Raises:
      ValueError: the manifest is damaged, or of a later version.
    """
    if folder is None or not (folder / MANIFEST).is_file():
        return Manifest()
    path = folder / MANIFEST
    try:
        saved = read_json(path)
        if not isinstance(saved, dict):
            raise Unreadable("no JSON object")
        if kinds.whole(saved.get("format")) and saved["format"] > FORMAT:
            raise Unreadable(f"written by a later version, in format {saved['format']}")
        kinds.check("the manifest", saved, _CONTENT)
        # Other names could be paths to other folders.
        if odd := [name for name in saved.get("checksums", {}) if Path(name).name != name]:
            raise Unreadable(f"{odd[0]!r} is not the name of a file")
        output = OutputConfig(**{**saved["output"], **_FOR_THE_COMMAND_LINE})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} can't be used ({error}): remove the folder, or choose another"
        ) from error
    own = {name: saved[name] for name in ("kind", "checksums", "demos") if name in saved}
    return Manifest(**own, output=output, code=tuple(saved.get("code", ())))


def write(out: Path, manifest: Manifest) -> None:
    """Write a folder's manifest."""
    assert manifest.kind is not None
    content: dict[str, Any] = {
        "format": FORMAT,
        "kind": manifest.kind,
        "output": dataclasses.asdict(manifest.output) | _FOR_THE_COMMAND_LINE,
        "files": list(FILES[manifest.kind]),
    }
    more: dict[str, Any] = {"code": list(manifest.code), "demos": manifest.demos}
    more["checksums"] = dict(manifest.checksums)
    write_json(out / MANIFEST, content | {name: own for name, own in more.items() if own})


def is_run(out: Path) -> bool:
    """Return whether a folder is a run's."""
    return read(out).kind == "run"


def has_ended(out: Path) -> bool:
    """Return whether the run in a folder has ended."""
    return (out / "summary.json").is_file()
