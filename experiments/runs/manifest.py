"""`manifest.json`: the kind of a folder, the version of the code, and checksums of files.

The folder of a run contains `config.json`, `metrics.csv` (one row per log point and seed,
deterministic), `timing.csv`, `checkpoints/`, `tensorboard/`, and at the end `summary.json` and
figures. The folder of a study contains one table of all runs, and figures.

Sizes and checksums of written files reveal edits and lost or repeated rows, unless the manifest was
edited as well.
"""

import dataclasses
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from experiments.runs.log import EVENTS_SUFFIX
from experiments.runs.run_config import OutputConfig
from experiments.runs.tables import Written
from experiments.storage import kinds
from experiments.storage.files import encode_json, read_bytes, read_json, reading, write_bytes

FORMAT = 2  # version of the format of folders
MANIFEST = "manifest.json"
# Options that upload data or give consent, with their defaults: a folder must not set them.
_FOR_THE_COMMAND_LINE = {"wandb": False, "other_code": False}
Kind = Literal["run", "plot", "study"]

_PAGE = r"report\.html"
# Regular expressions of our file names, specific enough not to match files of users by chance.
FILES: Mapping[Kind, tuple[str, ...]] = {
    "run": (
        r"(config|summary|manifest)\.json", r"(metrics|timing)\.csv", _PAGE,
        r"(learning_curve|replayed|own_metrics)\.png", r"episode\.gif",
        r"checkpoints/step_\d{12}\.(safetensors|damaged)",
        r"checkpoints/unfinished/step_\d{12}\.safetensors",
        r"checkpoints/unfinished/\.tmp\w{6}",  # by safetensors
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
        r"unfinished/[0-9a-f]{16}\.(safetensors|npz)",  # the latter by earlier versions
    ),
}  # fmt: skip
_OBJECT = kinds.dict_of(kinds.anything)


class Manifest(NamedTuple):
    """Content of `manifest.json`; the defaults represent a folder without a manifest."""

    kind: Kind | None = None
    output: OutputConfig = OutputConfig()
    code: tuple[str, ...] = ()  # versions of the code that trained a run, in order
    demos: str = ""  # digest of the file of a run with --demos
    # Permitted sizes and checksums by name of the file; for tables, of the beginning of the file.
    checksums: Mapping[str, list[list[int]]] = MappingProxyType({})


def _is_written(value: Any) -> bool:
    return kinds.many(kinds.natural, 2)(value)


_CONTENT = {
    "format": kinds.whole, "kind": lambda kind: isinstance(kind, str) and kind in FILES,
    "output": _OBJECT, "code?": kinds.list_of(kinds.text), "demos?": kinds.text,
    "checksums?": kinds.dict_of(kinds.list_of(_is_written)),
}  # fmt: skip


def read(folder: Path | None) -> Manifest:
    """Read a folder's manifest; return the defaults if there is none.

    Raises:
      ValueError: the manifest is damaged, or written by a later version.
    """
    if folder is None or not (folder / MANIFEST).is_file():
        return Manifest()
    path, remedy = folder / MANIFEST, "remove the folder, or choose another"
    saved = read_json(path, _CONTENT, latest=FORMAT, remedy=remedy)
    with reading(path, remedy):
        # A path could lead to other folders.
        if odd := [name for name in saved.get("checksums", {}) if Path(name).name != name]:
            raise ValueError(f"{odd[0]!r} is not the name of a file")
        output = OutputConfig(**{**saved["output"], **_FOR_THE_COMMAND_LINE})
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
    content |= {name: own for name, own in more.items() if own}
    write_bytes(out / MANIFEST, encode_json(content))


def is_run(out: Path) -> bool:
    """Return whether a folder is that of a run."""
    return read(out).kind == "run"


def has_ended(out: Path) -> bool:
    """Return whether the run in a folder has ended."""
    return (out / "summary.json").is_file()


def of(content: bytes) -> Written:
    """Return the size and checksum of bytes."""
    return Written(len(content), zlib.crc32(content))


def note(out: Path, files: Mapping[str, Sequence[Written]]) -> None:
    """Record permitted contents of files, by name, in the manifest of a folder if it has one."""
    if (out / MANIFEST).is_file():
        saved = read(out)
        known = {name: [list(each) for each in own] for name, own in files.items()}
        write(out, saved._replace(checksums={**saved.checksums, **known}))


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically, and record its checksum.

    The manifest is written first and permits the previous content as well, so that files do not
    count as edited if the process is killed in between.
    """
    encoded = encode_json(content)
    before = [of(path.read_bytes())] if path.is_file() else []
    note(path.parent, {path.name: [*before, of(encoded)]})
    write_bytes(path, encoded)


def differing(out: Path) -> list[str]:
    """Return a warning for each file of a folder that was edited.

    Rows appended to tables and missing files do not count as edits.

    Raises:
      ValueError: the manifest is damaged, or a file is a link.
    """
    paths = [out / name for name in read(out).checksums if is_edited(out / name)]
    return [f"{path} was edited: do not trust its numbers" for path in paths]


def is_edited(path: Path) -> bool:
    """Return whether a file exists with content that the manifest does not permit."""
    known = read(path.parent).checksums.get(path.name)
    if known is None or not path.is_file():
        return False
    content, grows = read_bytes(path), path.suffix == ".csv"
    return not any(
        of(content[:size]) == (size, crc32) and (grows or size == len(content))
        for size, crc32 in known
    )


def beginning(path: Path) -> bytes:
    """Return the beginning of a table that the manifest covers, or all of it without an entry."""
    content = read_bytes(path)
    known = read(path.parent).checksums.get(path.name, [])
    sizes = [size for size, _ in known if size <= len(content)]
    return content[: max(sizes)] if sizes else content
