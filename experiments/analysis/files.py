"""Files that are written whole or not at all."""

import errno
import json
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Any


def read_bytes(path: Path) -> bytes:
    """Read a regular file; a link is not followed, for a folder may come from somebody else.

    Raises:
      ValueError: one line: it is a link, or no regular file.
      OSError: it can't be read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        number = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"{path} is a link, which is not followed: put a file there") from None
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ValueError(f"{path} is no regular file: put one there")
        return file.read()


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all.

    Raises:
      OSError: the disk is full, or the folder is gone.
    """
    write_bytes(path, encode_json(content))


def encode_json(content: Any) -> bytes:
    """Return the bytes of a JSON file, lists of numbers on one line."""
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    return f"{text}\n".encode()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
      OSError: the disk is full, or the folder is gone.
    """
    # Under a name that nothing else has: no link is followed, and what a kill leaves harms nobody.
    number, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    with os.fdopen(number, "wb") as file:
        file.write(content)
    os.chmod(temporary, path.parent.stat().st_mode & 0o666)
    os.replace(temporary, path)
