"""Atomic writing of files, and reading of files from other people.

Every file is read by `read_bytes`, which checks its type and size, and parsed within `reading`,
which turns whatever goes wrong into one line with the file and the remedy.
"""

import contextlib
import errno
import json
import os
import re
import stat
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.files import kinds
from jaxreplay.saving import Damaged as Damaged  # raised by all readers
from jaxreplay.saving import check_writable, untrusted

MOST = 2**30  # largest size of a file to read, ten times that of the largest expected ones
_MOST_TEXT = 2**27  # limit for JSON and TOML, whose values take ten times the memory of the text
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.tmp")  # names that `replacing` makes
_START = time.time()
reading = untrusted.parsing  # errors about the content of a file: `Damaged`, in one line


def read_bytes(
    path: Path, *, follow: bool = False, most: int = MOST, remedy: str = "restore it"
) -> bytes:
    """Return the content of a regular file.

    Args:
      path: path of the file.
      follow: whether to follow a link, as for a path that the user gave. Links in a folder are not
        followed, since the folder may come from another person.
      most: largest size in bytes, which is checked before memory is taken.
      remedy: what to do about a file that cannot be read, for errors.

    Raises:
      Damaged: the path is missing, unreadable, a link, a folder, a pipe, a device or a socket, or
        the file is too large. Damaged is a ValueError.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise Damaged(f"{path} is not a regular file: {remedy}")
            if about.st_size > most:
                raise Damaged(f"{path} has more than {most:,} bytes: {remedy}")
            return file.read(about.st_size)  # Python reserves this many bytes
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Damaged(f"{path} is a link, which is not followed: put a file there") from None
        if error.errno == errno.ENOENT:
            raise Damaged(f"{path} is missing: {remedy}") from None
        raise Damaged(f"{path} can't be read ({error.strerror}): {remedy}") from None


def read_json(
    path: Path,
    fields: Mapping[str, kinds.Check] | None = None,
    *,
    latest: int | None = None,
    remedy: str = "restore it",
) -> Any:
    """Read a JSON file.

    Args:
      path: path of the file.
      fields: checks of the fields of an object, see `kinds.check`; None accepts any value.
      latest: latest format that this version of the code reads; the object states its own in field
        `format`. None does not check it.
      remedy: what to do about a file that cannot be read, for errors.

    Raises:
      Damaged: as in `read_bytes`, or the content is not JSON, nested too deeply, has an integer
        of more than 64 bits, or fails a check.
      ValueError: a later version of the code wrote the file.
    """
    content = read_bytes(path, most=_MOST_TEXT, remedy=remedy)
    with reading(path, remedy):
        saved = untrusted.parse_json(content)
        if latest is not None:
            kinds.check(saved, {"format": lambda own: kinds.natural(own) and own > 0})
    if latest is not None and saved["format"] > latest:
        raise ValueError(
            f"{path} was written by a later version (format {saved['format']}): use that version"
        )
    with reading(path, remedy):
        if fields is not None:
            kinds.check(saved, fields)
    return saved


def read_sealed(path: Path, fields: Mapping[str, kinds.Check], remedy: str) -> dict[str, Any]:
    """Read a file of `write_sealed`; arguments and errors are those of `read_json`."""
    content = read_bytes(path, most=_MOST_TEXT, remedy=remedy)
    with reading(path, remedy):
        saved = untrusted.unseal(content.decode())
        kinds.check(saved, fields)
        return saved


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
      Damaged: as in `read_json`; links are followed.
    """
    content = read_bytes(path, follow=True, most=_MOST_TEXT, remedy="correct it")
    with reading(path, "correct it"):
        return untrusted.shallow(tomllib.loads(content.decode()))


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically.

    Raises:
      ValueError: the path is a link, a folder or a pipe.
      OSError: the disk is full, or the folder does not exist.
    """
    write_bytes(path, encode_json(content))


def write_sealed(path: Path, content: Any) -> None:
    """Write JSON with a checksum in front of it; errors are those of `write_json`."""
    write_bytes(path, untrusted.seal(content).encode())


def encode_json(content: Any) -> bytes:
    """Return the bytes of a JSON file, with each list of numbers on one line."""
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    return f"{text}\n".encode()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
      ValueError: the path is a link, a folder or a pipe.
      OSError: the disk is full, or the folder does not exist.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Return a context with the path of an empty file, which replaces `path` when the context ends.

    Errors are those of `write_bytes`.
    """
    check_writable(path, "remove it, or choose another")
    for left in [left for left, target in leftovers(path.parent).items() if target == path]:
        left.unlink(missing_ok=True)
    # The name is unique, so that processes that write the same file do not conflict.
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(number)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(path.parent.stat().st_mode & 0o666)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def leftovers(folder: Path) -> dict[Path, Path]:
    """Return temporary files of killed processes in a folder, with the paths that they replace.

    Files of this process and of processes started after it are left out: they may be in use.
    """
    found = {path: _TEMPORARY.fullmatch(path.name) for path in folder.iterdir()}
    return {path: folder / match[1] for path, match in found.items() if match and _is_old(path)}


def _is_old(path: Path) -> bool:
    """Return whether a regular file was written before this process started."""
    try:
        about = path.lstat()
    except FileNotFoundError:  # another process has published it
        return False
    return stat.S_ISREG(about.st_mode) and about.st_mtime < _START
