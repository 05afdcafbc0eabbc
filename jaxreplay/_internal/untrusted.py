"""Text from files that may be anybody's: parsed, and repeated in messages, without harm."""

import json
import os
import stat
from typing import Any

DEEPEST = 100  # levels of nesting, more than any file of ours has


def is_regular(path: str | os.PathLike) -> bool:
    """Return whether reading a path ends: it is a file, and no pipe, device, socket or folder."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):  # a name with a NUL is a ValueError
        return False


def check_writable(path: str | os.PathLike, advice: str) -> None:
    """Refuse a path that something other than a regular file has.

    Raises:
      ValueError: a link, a folder, a pipe, a device or a socket is there.
    """
    if os.path.islink(path):
        raise ValueError(f"{path} is a link, which is not followed: {advice}")
    if os.path.exists(path) and not is_regular(path):
        what = "a folder" if os.path.isdir(path) else "not a regular file"
        raise ValueError(f"{path} is {what}: {advice}")


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text holds.

    Raises:
      ValueError: it is not JSON, its encoding is not UTF-8, or it is nested too deeply.
    """
    try:
        return shallow(json.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def shallow(value: Any) -> Any:
    """Return a parsed value unless it is nested too deeply for functions that call themselves.

    Raises:
      ValueError: it is nested in more than `DEEPEST` levels.
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
    """Return a text with characters that control a terminal, or can't be encoded, as escapes."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in str(text))


_TOO_DEEP = f"nested in more than {DEEPEST} levels"
