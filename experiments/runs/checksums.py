"""What files of a folder held when they were written: sizes and checksums in its manifest.

They tell an edit, a lost row or a doubled one; whoever edits the manifest too is not found out.
"""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.analysis.files import Unreadable, encode_json, read_bytes, read_json, write_bytes
from experiments.runs import manifest
from experiments.runs.log import Written
from experiments.runs.manifest import MANIFEST


def of(content: bytes) -> Written:
    """Return the size and checksum of what is written."""
    return Written(len(content), zlib.crc32(content))


def note(out: Path, files: Mapping[str, Sequence[Written]]) -> None:
    """Note in a folder's manifest, if it has one, what files may hold, by name."""
    if (out / MANIFEST).is_file():
        saved = manifest.read(out)
        known = {name: [list(each) for each in own] for name, own in files.items()}
        manifest.write(out, saved._replace(checksums={**saved.checksums, **known}))


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and note it.

    Until it is there, the manifest knows the file from before too: a kill between the two leaves
    nothing that looks edited.
    """
    before = [of(path.read_bytes())] if path.is_file() else []
    note(path.parent, {path.name: [*before, of(content)]})
    write_bytes(path, content)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file as `write` does."""
    write(path, encode_json(content))


def differing(out: Path) -> list[str]:
    """Return a line about each file of a folder that is not as it was written.

    Tables may have grown since; files that are gone are not missed.

    Raises:
      ValueError: the manifest is damaged, or a file is a link.
    """
    if not (out / MANIFEST).is_file():
        return []
    saved = manifest.read(out)
    found = [out / name for name in saved.checksums if _known(out, name) is False]
    path = out / "config.json"
    if saved.config_crc32 is not None and path.is_file():
        try:
            now = manifest.checksum(read_json(path))
        except Unreadable:
            now = None
        found += [path] * (now != saved.config_crc32)
    return [f"{path} is not as it was written: do not trust its numbers" for path in found]


def beginning(path: Path) -> bytes:
    """Return as much of a table as its folder's manifest knows; all, if that is nothing."""
    content = read_bytes(path)
    out = path.parent
    known = manifest.read(out).checksums.get(path.name) if (out / MANIFEST).is_file() else None
    sizes = [size for size, _ in known or () if size <= len(content)]
    return content[: max(sizes)] if sizes else content


def _known(out: Path, name: str) -> bool | None:
    """Tell whether a file begins as the manifest has it, and is no longer unless it is a table."""
    path = out / name
    if not path.is_file():
        return None
    content = read_bytes(path)
    grows = path.suffix == ".csv"
    return any(
        of(content[:size]) == (size, crc32) and (grows or size == len(content))
        for size, crc32 in manifest.read(out).checksums[name]
    )
