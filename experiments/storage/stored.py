"""Tables of numbers in compressed CSV files, each with a JSON file of facts and checksums."""

import gzip
import io
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.storage import files


class Damaged(ValueError):
    """A table cannot be read, or its file has changed since it was written."""


class Encoded(NamedTuple):
    """The bytes of a table's file."""

    content: bytes  # compressed
    crc32: int  # checksum of the uncompressed text


class Decoded(NamedTuple):
    """A table from a file."""

    frame: pd.DataFrame
    crc32: int  # checksum of the uncompressed text


def encode(frame: pd.DataFrame, digits: int) -> Encoded:
    """Return the bytes of a table's file; equal tables give equal bytes.

    Args:
      frame: the table.
      digits: significant digits of each number; nine distinguish all float32 values.
    """
    text = frame.to_csv(index=False, float_format=f"%.{digits}g").encode()
    return Encoded(gzip.compress(text, mtime=0), zlib.crc32(text))


def decode(path: Path, expected: Collection[int], facts: Path) -> Decoded:
    """Read a table.

    Args:
      path: path of the table.
      expected: valid checksums of its text.
      facts: path of the file with these checksums, for the error.

    Raises:
      Damaged: the file is missing or damaged, or has another checksum.
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
    """Read the facts about a table.

    Args:
      path: path of the JSON file.
      latest: latest format that this version of the code reads.

    Raises:
      Damaged: the file is missing or damaged.
      ValueError: a later version of the code wrote the file.
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
