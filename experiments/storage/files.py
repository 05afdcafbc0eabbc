"""Atomic writing of files, and safe reading of files from other people."""

import contextlib
import errno
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxreplay.saving import check_writable, untrusted

_MOST = 2**30  # largest size of a file to read, ten times that of the largest expected ones


class Unreadable(ValueError):
    """A file can't be read, or its content does not fit its name."""


def read_bytes(path: Path, follow: bool = False) -> bytes:
    """Return the content of a regular file.

    Args:
      path: path of the file.
      follow: whether to follow a link, as for a path that the user gave. Links in a folder are not
        followed, since the folder may come from another person.

    Raises:
      Unreadable: the path is a link, a folder, a pipe, a device or a socket, or the file is larger
        than 1 GiB.
      OSError: the file does not exist, or its permissions forbid reading.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        number = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Unreadable(f"{path} is a link, which is not followed: put a file there") from None
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise Unreadable(f"{path} is not a regular file")
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise Unreadable(f"{path} has more than {_MOST:,} bytes")
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
      Unreadable: as in `read_bytes`, or the content is not JSON or nested too deeply.
      OSError: as in `read_bytes`.
    """
    content = read_bytes(path)
    try:
        return untrusted.parse_json(content)
    except ValueError as error:
        raise Unreadable(untrusted.printable(error)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
      Unreadable: as in `read_bytes`, or the content is not TOML or nested too deeply.
      OSError: as in `read_bytes`.
    """
    content = read_bytes(path, follow=True)
    try:
        return untrusted.shallow(tomllib.loads(content.decode()))
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(untrusted.printable(error)) from None


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically.

    Raises:
      ValueError: the path is a link, a folder or a pipe.
      OSError: the disk is full, or the folder does not exist.
    """
    write_bytes(path, encode_json(content))


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
    """Return a context with the path of an empty file that replaces `path` at the end.

    Errors are those of `write_bytes`.
    """
    check_writable(path, "remove it, or choose another")
    # The name is unique, so that files left by killed processes do not conflict.
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(number)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(path.parent.stat().st_mode & 0o666)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
