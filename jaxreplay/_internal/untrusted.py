"""Safe handling of files and text from untrusted sources."""

import json
import os
import stat
from typing import Any

DEEPEST = 100  # maximum number of nesting levels of a JSON value


def is_regular(path: str | os.PathLike) -> bool:
    """Return whether a path is a regular file, not a pipe, device, socket or folder."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):  # a NUL in the name raises ValueError
        return False


def check_writable(path: str | os.PathLike, advice: str) -> None:
    """Raise ValueError if a path is a symbolic link, folder, pipe, device or socket."""
    if os.path.islink(path):
        raise ValueError(f"{path} is a symbolic link, which is not followed: {advice}")
    if os.path.exists(path) and not is_regular(path):
        what = "a folder" if os.path.isdir(path) else "not a regular file"
        raise ValueError(f"{path} is {what}: {advice}")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text.

    Raises:
      ValueError: If the text is not JSON, not encoded in UTF-8, or nested too deeply.
    """
    try:
        return shallow(json.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def shallow(value: Any) -> Any:
    """Validate that a parsed JSON value is nested at most `DEEPEST` levels deep, and return it.

    Deeper values would overflow the stack in recursive functions.

    Raises:
      ValueError: If the value is nested more deeply.
    """
    level, depth = [[value]], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(_TOO_DEEP)
        parents = (each.values() if isinstance(each, dict) else each for each in level)
        level = [child for own in parents for child in own if isinstance(child, dict | list)]
        depth += 1
    return value


def printable(text: Any) -> str:
    """Convert a value to text, with control characters and unencodable characters escaped."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in str(text))


_TOO_DEEP = f"nested more than {DEEPEST} levels deep"
