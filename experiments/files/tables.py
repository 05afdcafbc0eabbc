"""Tables of numbers in CSV files; compressed ones contain a checksum."""

import gzip
import io
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.files import disk

_REMEDY = "restore it, or run the study again"


def encode(frame: pd.DataFrame, digits: int) -> bytes:
    """Return the bytes of a table's file; equal tables give equal bytes.

    Args:
      frame: the table.
      digits: significant digits of each number; nine distinguish all float32 values.
    """
    text = frame.to_csv(index=False, float_format=f"%.{digits}g").encode()
    return gzip.compress(text, mtime=0)


def decode(path: Path) -> pd.DataFrame:
    """Read a compressed table.

    Raises:
      Damaged: the file is missing or damaged.
    """
    content = disk.read_bytes(path, remedy=_REMEDY)
    with disk.reading(path, _REMEDY):
        size = int.from_bytes(content[-4:], "little")
        if size > disk.MOST:
            raise ValueError(f"its text has more than {disk.MOST:,} bytes")
        stream = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16)  # checks size and checksum
        text = stream.decompress(content, size + 1)
        if not stream.eof or stream.unused_data:
            raise ValueError("it is cut off, or has bytes after its end")
    return parse(path, text, (), _REMEDY)


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
    with disk.reading(path, remedy):
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
        raise ValueError(f"column {lacking[0]} is missing")
    for name in numbers:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            raise ValueError(f"not all cells of column {name} are numbers")
        if name in ("seed", "step") and frame[name].dtype.kind != "i":
            raise ValueError(f"not all cells of column {name} are integers")
        if name == "eval_return" and not np.isfinite(frame[name]).all():
            raise ValueError(f"not all cells of column {name} are finite")
