"""What `manifest.json` says of a folder: whose it is, which files are ours, which code made it.

A run's folder holds `config.json`, `metrics.csv` (one row per log point and seed, deterministic),
`timing.csv`, `checkpoints/`, `tensorboard/`, and at the end `summary.json` and figures. A
comparison's holds a table, figures and a folder for each run; a sweep's, one table of all runs.
"""

import dataclasses
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from experiments.analysis import kinds
from experiments.analysis.files import Unreadable, read_json, write_json
from experiments.runs.arms import CONTROL, Question
from experiments.runs.log import EVENTS_SUFFIX
from experiments.runs.outputs import OutputConfig

FORMAT = 2  # of folders; 1 had no manifest
MANIFEST = "manifest.json"
LABEL = r"[A-Za-z]\w*"  # of a run in a comparison
# Sends data elsewhere, or is a consent: no folder, perhaps a stranger's, asks for it.
_FOR_THE_COMMAND_LINE = {"wandb": False, "other_code": False}
Kind = Literal["run", "comparison", "plot", "sweep", "study"]

_JOINT = (
    r"manifest\.json", r"summary\.json", r"comparison\.md", r"verdicts\.json", r"verdicts\.png",
    r"(learning_curves|replayed|own_metrics|solved)(_every\d+)?\.png",
)  # fmt: skip
_PAGE = r"report\.html"
# The names that files have, as regular expressions: no file of a user's has one by chance.
FILES: Mapping[Kind, tuple[str, ...]] = {
    "run": (
        r"(config|summary|manifest)\.json", r"(metrics|timing)\.csv", _PAGE,
        r"(learning_curve|replayed|own_metrics)\.png", r"episode\.(gif|mp4)",
        r"checkpoints/step_\d{12}\.(safetensors|damaged)",
        r"checkpoints/unfinished/step_\d{12}\.safetensors",
        r"checkpoints/unfinished/\.tmp\w{6}",  # safetensors' own
        rf"tensorboard/events\.out\.tfevents\.\d+\..*{re.escape(EVENTS_SUFFIX)}",
    ),
    "comparison": (*_JOINT, _PAGE),
    "plot": _JOINT,
    "sweep": (
        r"manifest\.json", r"sweep\.(csv\.gz|json|md)", _PAGE,
        r"(sensitivity|best|trials|settings)\.png",
    ),
    "study": (
        *_JOINT, _PAGE, r"study\.(csv\.gz|json|md)", r"(sensitivity|best|trials|settings)\.png",
        r"(looks|solved|learning_curves|replayed|own_metrics)(_\d+)?\.png",
        r"unfinished/[0-9a-f]{16}\.npz",
    ),
}  # fmt: skip


class Manifest(NamedTuple):
    """What `manifest.json` says."""

    kind: Kind
    output: OutputConfig
    runs: dict[str, dict[str, Any]]  # of a comparison: every run's configuration, by label
    config_crc32: int | None = None  # of a run: a checksum of its configuration
    code: tuple[str, ...] = ()  # of a run: the versions of the code that trained it, in order
    question: Question = Question()  # of a comparison
    methods: Mapping[str, str] = MappingProxyType({})  # of a comparison: its method, by label
    # Sizes and checksums that files may have, by name; of tables, those of their beginning.
    checksums: Mapping[str, list[list[int]]] = MappingProxyType({})


def kind_of(folder: Path) -> Kind | None:
    """Tell whether a folder is a run's, a comparison's, a plot's or a sweep's; None: none's.

    Raises:
      ValueError: its manifest is damaged.
    """
    if (folder / MANIFEST).is_file():
        return read(folder).kind
    if _is_config(folder / "config.json"):  # of format 1
        return "run"
    children = [path for path in folder.glob("*/config.json") if _is_config(path)]
    if (folder / "comparison.md").is_file() and any(
        not path.with_name(MANIFEST).exists() for path in children
    ):
        return "comparison"  # of format 1, too
    return None


def read(folder: Path) -> Manifest:
    """Read a folder's manifest.

    Raises:
      ValueError: one line: it is damaged, or of a later version.
    """
    path = folder / MANIFEST
    try:
        saved = read_json(path)
        if saved["format"] > FORMAT:
            raise ValueError(
                f"{folder} was made by a later version (format {saved['format']}): use that"
            )
        if saved["kind"] not in FILES:
            raise KeyError("kind")
        runs = dict(saved["runs"])
        output = OutputConfig(**{**saved["output"], **_FOR_THE_COMMAND_LINE})
        crc, versions = saved.get("config_crc32"), tuple(saved.get("code", ()))
        if not all(isinstance(version, str) for version in versions):
            raise KeyError("code")
        question = Question(**saved.get("question", {}))
        methods = {str(label): str(own) for label, own in saved.get("methods", {}).items()}
        for label in (*runs, *methods.values()):  # else a stranger's could lead elsewhere
            if not re.fullmatch(LABEL, label):
                raise KeyError(f"label {label}")
        checksums = saved.get("checksums", {})
        if not kinds.named(kinds.listed(kinds.many(kinds.whole, 2)))(checksums) or any(
            size < 0 for own in checksums.values() for size, _ in own
        ):
            raise KeyError("checksums")
        if odd := [name for name in checksums if Path(name).name != name]:
            raise KeyError(f"checksum of {odd[0]}")
        return Manifest(saved["kind"], output, runs, crc, versions, question, methods, checksums)
    except (Unreadable, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): restore it, or choose another folder"
        ) from error


def write(out: Path, manifest: Manifest) -> None:
    """Write a folder's manifest."""
    content = {
        "format": FORMAT,
        "kind": manifest.kind,
        "output": dataclasses.asdict(manifest.output) | _FOR_THE_COMMAND_LINE,
        "files": list(FILES[manifest.kind]),
        "runs": manifest.runs,
    }
    if manifest.kind == "comparison":
        content["question"] = dataclasses.asdict(manifest.question)
        content["methods"] = dict(manifest.methods)
    if manifest.code:
        content["code"] = list(manifest.code)
    if manifest.config_crc32 is not None:
        content["config_crc32"] = manifest.config_crc32
    if manifest.checksums:
        content["checksums"] = dict(manifest.checksums)
    write_json(out / MANIFEST, content)


def is_run(out: Path) -> bool:
    """Tell whether a folder is a run's.

    Raises:
      ValueError: its manifest is damaged.
    """
    return kind_of(out) == "run"


def has_ended(out: Path) -> bool:
    """Tell whether the run in a folder has ended."""
    return (out / "summary.json").is_file()


def made_by(out: Path) -> tuple[str, ...]:
    """Return the versions of the code that trained the run in a folder; (): none is known."""
    return read(out).code if (out / MANIFEST).is_file() else ()


def listed(out: Path) -> list[str]:
    """Return the labels that a comparison's manifest lists; none, if it has no manifest."""
    if not (out / MANIFEST).is_file() or read(out).kind != "comparison":
        return []
    return list(read(out).runs)


def runs_of(out: Path) -> dict[str, dict[str, Any]]:
    """Return the configurations of a comparison's runs, whether their folders are there or not.

    Raises:
      ValueError: its manifest is damaged.
    """
    if (out / MANIFEST).is_file():
        return read(out).runs
    found = sorted(path for path in out.glob("*/config.json") if _is_config(path))
    return {path.parent.name: read_json(path) for path in found}


def methods_of(out: Path) -> dict[str, str]:
    """Return the label of one run of every method of a comparison, but for the control."""
    known = read(out).methods if (out / MANIFEST).is_file() else {}
    labels = runs_of(out)
    found = {known.get(label, label): label for label in reversed(list(labels))}
    return {own: found[own] for own in reversed(list(found)) if own != CONTROL}


def saved_question(out: Path | None) -> Question:
    """Return what the comparison in a folder asks; None: the defaults.

    Raises:
      ValueError: its manifest is damaged.
    """
    if out is None or not (out / MANIFEST).is_file():
        return Question()
    return read(out).question


def saved_output(out: Path | None) -> OutputConfig:
    """Return what the run or comparison in a folder writes, to go on so; None: the defaults.

    Raises:
      ValueError: its manifest is damaged.
    """
    if out is None or not (out / MANIFEST).is_file():
        return OutputConfig()
    return read(out).output


def checksum(config: dict[str, Any]) -> int:
    """Return the checksum of a run's configuration that its manifest holds."""
    return zlib.crc32(json.dumps(config, sort_keys=True).encode())


def _is_config(path: Path) -> bool:
    """Tell whether a file is the `config.json` of a run."""
    try:
        saved = read_json(path)
    except (OSError, Unreadable):
        return False
    return isinstance(saved, dict) and {"env", "agent", "replay", "seeds", "loop"} <= set(saved)
