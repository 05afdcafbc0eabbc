"""Safe handling of files and text from untrusted sources."""

import contextlib
import json
import os
import stat
import zlib
from collections.abc import Iterator
from typing import Any

DEEPEST = 100  # maximum number of nesting levels of a JSON value
_LARGEST = 2**63  # bound of the magnitude of integers; larger ones overflow in arithmetic
_LONGEST = 300  # characters of a reason in a message


class Damaged(ValueError):
    """The contents of a file have changed since the file was written."""


@contextlib.contextmanager
def parsing(what: object, remedy: str) -> Iterator[None]:
    """Return a context manager that replaces any exception in its block by Damaged.

    Parsers of damaged content raise exceptions of any type, so there is no list of types. The
    message is one line: `what` names the file, then come the reason and the remedy.
    """
    try:
        yield
    except (Damaged, MemoryError):  # a file that does not fit into memory is not damaged
        raise
    except Exception as error:
        text = " ".join(f"{error}".split())
        reason = text if isinstance(error, ValueError) else f"{type(error).__name__} {text}".strip()
        reason = printable(reason)
        short = reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 3]}..."
        raise Damaged(f"{what} is damaged ({short}): {remedy}") from None


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
      ValueError: If the text is not JSON, not encoded in UTF-8, or invalid for `shallow`.
    """
    try:
        return shallow(json.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def seal(value: Any) -> str:
    """Return a value as JSON text with a checksum in front of it."""
    text = json.dumps(value)
    return f"{zlib.crc32(text.encode()):08x} {text}"


def unseal(sealed: str) -> Any:
    """Return the value from a result of `seal`.

    Raises:
      ValueError: If the checksum is wrong, or `parse_json` rejects the text.
    """
    checksum, _, text = sealed.partition(" ")
    if checksum != f"{zlib.crc32(text.encode(errors='replace')):08x}":
        raise ValueError("checksum mismatch")
    return parse_json(text)


def shallow(value: Any) -> Any:
    """Validate the depth and the integers of a parsed JSON or TOML value, and return it.

    Values nested more than `DEEPEST` levels deep would overflow the stack in recursive functions.

    Raises:
      ValueError: If the value is nested more than `DEEPEST` levels deep, or an integer needs more
        than 64 bits.
    """
    level, depth = [[value]], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(_TOO_DEEP)
        parents = (node.values() if isinstance(node, dict) else node for node in level)
        children = [child for siblings in parents for child in siblings]
        if any(isinstance(child, int) and abs(child) >= _LARGEST for child in children):
            raise ValueError("an integer needs more than 64 bits")
        level = [child for child in children if isinstance(child, dict | list)]
        depth += 1
    return value


def printable(text: Any) -> str:
    """Convert a value to text, with control characters and unencodable characters escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))


_TOO_DEEP = f"nested more than {DEEPEST} levels deep"
