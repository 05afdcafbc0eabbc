"""A table of numbers as a compressed CSV file, beside a JSON file that says what made it."""

import gzip
import io
import json
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.analysis.files import read_bytes


class Damaged(ValueError):
    """A table can't be read, or is not what was written."""


class Encoded(NamedTuple):
    """A table as bytes."""

    content: bytes  # of the file
    crc32: int  # of the text in it


class Decoded(NamedTuple):
    """A table that was read."""

    frame: pd.DataFrame
    crc32: int  # of its text


def encode(frame: pd.DataFrame, digits: int) -> Encoded:
    """Return a table as the bytes of a file: nothing but the numbers decides them.

    Args:
      frame: the table.
      digits: significant ones of each number; nine tell all of float32 apart.
    """
    text = frame.to_csv(index=False, float_format=f"%.{digits}g").encode()
    return Encoded(gzip.compress(text, mtime=0), zlib.crc32(text))


def decode(path: Path, expected: Collection[int], facts: Path) -> Decoded:
    """Read a table.

    Args:
      path: of its file.
      expected: checksums that its text may have.
      facts: the file that they are from, for the message.

    Raises:
      Damaged: one line that names the file.
    """
    try:
        text = gzip.decompress(read_bytes(path))
    except (OSError, EOFError, zlib.error) as error:
        raise Damaged(f"{path} is damaged ({error})") from None
    crc32 = zlib.crc32(text)
    if crc32 not in expected:
        raise Damaged(f"{path} is damaged, or is not what {facts.name} speaks of")
    return Decoded(pd.read_csv(io.BytesIO(text)), crc32)


def read_facts(path: Path, latest: int) -> dict[str, Any]:
    """Read what is said of a table.

    Args:
      path: of its file.
      latest: format that is understood.

    Raises:
      Damaged: one line that names the file.
      ValueError: a later version made it.
    """
    try:
        saved = json.loads(read_bytes(path))
        if saved["format"] > latest:
            raise ValueError(
                f"{path} was made by a later version (format {saved['format']}): use that"
            )
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise Damaged(f"{path} is damaged ({error!r})") from None
    return saved
