"""Files that are written whole or not at all."""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all, lists of numbers on one line.

    Raises:
      ValueError: a link is in the way.
      OSError: the disk is full, or the folder is gone.
    """
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    write_bytes(path, f"{text}\n".encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
      ValueError: a link is in the way.
      OSError: the disk is full, or the folder is gone.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def replacing(path: Path, suffix: str = ".tmp") -> Iterator[Path]:
    """Give an empty file that takes the place of `path` once it is written, as `write_bytes` does.

    Args:
      path: where to.
      suffix: of the file that is given, for writers that look at it.
    """
    check_no_link(path)
    # Under a name that nothing else has: what a kill leaves harms nobody.
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=suffix)
    os.close(number)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(path.parent.stat().st_mode & 0o666)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_no_link(path: Path) -> None:
    """Refuse to write where a link is: neither is it replaced, nor what it leads to.

    Raises:
      ValueError: one line.
    """
    if path.is_symlink():
        raise ValueError(f"{path} is a link, which is not followed: remove it, or choose another")
