"""Tables of numbers as compressed CSV files, each described by a JSON file."""

import gzip
import io
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.storage import files


class Damaged(ValueError):
    """A table can't be read, or has changed since it was written."""


class Encoded(NamedTuple):
    """A table as bytes."""

    content: bytes  # of the file
    crc32: int  # of the text in it


class Decoded(NamedTuple):
    """A table that was read."""

    frame: pd.DataFrame
    crc32: int  # of its text


def encode(frame: pd.DataFrame, digits: int) -> Encoded:
    """Return a table as the bytes of a file, which depend on nothing but the numbers.

    Args:
      frame: the table.
      digits: significant digits of each number; nine distinguish all float32 values.
    """
    text = frame.to_csv(index=False, float_format=f"%.{digits}g").encode()
    return Encoded(gzip.compress(text, mtime=0), zlib.crc32(text))


def decode(path: Path, expected: Collection[int], facts: Path) -> Decoded:
    """Read a table.

    Args:
      path: of its file.
      expected: checksums that its text may have.
      facts: the file with these checksums, for the message.

    Raises:
      Damaged: one line that names the file.
    """
    try:
        text = gzip.decompress(files.read_bytes(path))
    except FileNotFoundError:
        raise Damaged(f"{path} is missing: restore it, or run the study again") from None
    except (OSError, EOFError, zlib.error, files.Unreadable) as error:
        raise Damaged(f"{path} is damaged ({error})") from None
    crc32 = zlib.crc32(text)
    if crc32 not in expected:
        raise Damaged(f"{path} is damaged, or does not belong to {facts.name}")
    return Decoded(pd.read_csv(io.BytesIO(text)), crc32)


def read_facts(path: Path, latest: int) -> dict[str, Any]:
    """Read the description of a table.

    Args:
      path: of its file.
      latest: the newest format that this version reads.

    Raises:
      Damaged: one line that names the file.
      ValueError: a later version made it.
    """
    try:
        saved = files.read_json(path)
        if saved["format"] > latest:
            raise ValueError(
                f"{path} was made by a later version (format {saved['format']}): use that"
            )
    except (OSError, files.Unreadable, KeyError, TypeError) as error:
        raise Damaged(f"{path} is damaged ({error!r})") from None
    return saved
