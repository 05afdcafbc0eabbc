"""Tables of numbers in CSV files, of which compressed ones have a JSON file with checksums."""

import gzip
import io
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.storage import files

_REMEDY = "restore it, or run the study again"


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


def facts_of(path: Path) -> Path:
    """Return the path of the JSON file of a compressed table."""
    return path.with_suffix("").with_suffix(".json")


def decode(path: Path, expected: Collection[int]) -> Decoded:
    """Read a compressed table.

    Args:
      path: path of the table.
      expected: valid checksums of its text.

    Raises:
      Damaged: the file is missing or damaged, or has another checksum.
    """
    content = files.read_bytes(path, remedy=_REMEDY)
    with files.reading(path, _REMEDY):
        crc32, size = (int.from_bytes(end, "little") for end in (content[-8:-4], content[-4:]))
        if crc32 not in expected:
            raise ValueError(f"it does not belong to {facts_of(path).name}")
        if size > files.MOST:
            raise ValueError(f"its text has more than {files.MOST:,} bytes")
        stream = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16)  # checks size and checksum
        text = stream.decompress(content, size + 1)
        if not stream.eof or stream.unused_data:
            raise ValueError("it is cut off, or longer than its text")
    return Decoded(parse(path, text, (), _REMEDY), crc32)


def parse(
    path: Path, text: bytes, numbers: Collection[str], remedy: str = "restore it"
) -> pd.DataFrame:
    """Return the table in the text of a CSV file.

    Args:
      path: path of the file.
      text: content of the file.
      numbers: columns that must be there; if there are any, all columns are checked as in `check`.
      remedy: what to do about a damaged file, for errors.

    Raises:
      Damaged: the text is no table, or lacks a column, or a column has another type.
    """
    with files.reading(path, remedy):
        frame = pd.read_csv(io.BytesIO(text))
        if numbers:
            check(frame, numbers, frame)
    return frame


def check(frame: pd.DataFrame, columns: Collection[str], numbers: Collection[str]) -> None:
    """Check the columns of a table.

    Args:
      frame: the table.
      columns: columns that must be there.
      numbers: columns that must be numeric; seed and step must be integers, and eval_return finite.

    Raises:
      ValueError: a column is missing, or has another type.
    """
    if lacking := sorted({*columns, *numbers} - set(frame)):
        raise ValueError(f"it lacks column {lacking[0]}")
    for name in numbers:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            raise ValueError(f"not all cells of column {name} are numbers")
        if name in ("seed", "step") and frame[name].dtype.kind != "i":
            raise ValueError(f"not all cells of column {name} are integers")
        if name == "eval_return" and not np.isfinite(frame[name]).all():
            raise ValueError(f"not all cells of column {name} are finite")
