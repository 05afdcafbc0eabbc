"""Sizes and checksums of a folder's files as they were written, kept in its manifest.

They reveal an edit and lost or doubled rows, unless the manifest was edited as well.
"""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.runs import manifest
from experiments.runs.manifest import MANIFEST
from experiments.runs.tables import Written
from experiments.storage.files import encode_json, read_bytes, write_bytes


def of(content: bytes) -> Written:
    """Return the size and checksum of bytes."""
    return Written(len(content), zlib.crc32(content))


def note(out: Path, files: Mapping[str, Sequence[Written]]) -> None:
    """Record in a folder's manifest, if it has one, the permitted contents of files by name."""
    if (out / MANIFEST).is_file():
        saved = manifest.read(out)
        known = {name: [list(each) for each in own] for name, own in files.items()}
        manifest.write(out, saved._replace(checksums={**saved.checksums, **known}))


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically, and record its checksum.

    Until the file is in place, the manifest permits the previous content as well, so a process
    killed in between leaves nothing that looks edited.
    """
    encoded = encode_json(content)
    before = [of(path.read_bytes())] if path.is_file() else []
    note(path.parent, {path.name: [*before, of(encoded)]})
    write_bytes(path, encoded)


def differing(out: Path) -> list[str]:
    """Return a line about each file of a folder that was edited.

    Tables may have grown since; files that are gone are ignored.

    Raises:
      ValueError: the manifest is damaged, or a file is a link.
    """
    paths = [out / name for name in manifest.read(out).checksums if is_edited(out / name)]
    return [f"{path} was edited: do not trust its numbers" for path in paths]


def is_edited(path: Path) -> bool:
    """Return whether a file exists with content that the manifest does not permit."""
    known = manifest.read(path.parent).checksums.get(path.name)
    if known is None or not path.is_file():
        return False
    content, grows = read_bytes(path), path.suffix == ".csv"
    return not any(
        of(content[:size]) == (size, crc32) and (grows or size == len(content))
        for size, crc32 in known
    )


def beginning(path: Path) -> bytes:
    """Return the part of a table that its folder's manifest covers, or else all of it."""
    content = read_bytes(path)
    known = manifest.read(path.parent).checksums.get(path.name, [])
    sizes = [size for size, _ in known if size <= len(content)]
    return content[: max(sizes)] if sizes else content
