"""Parts of a computed table, kept as they are finished until the table is written."""

import hashlib
import json
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.papers.entry import Row
from experiments.runs.log import say
from experiments.storage.files import read_json, write_bytes


class Parts:
    """What is finished of a table, a file for each part: called, it returns a part's rows.

    Files go by all that decides the rows, so that parts of other settings or other code, or made on
    another device, are not looked at.

    Attributes:
      folder: of the files, which may be missing as long as nothing is written.
      seconds: that the parts took which were there before.
    """

    def __init__(self, folder: Path, *decided_by: Any) -> None:
        """Look for parts that are decided by settings, code and device, as JSON."""
        self.folder, self.seconds, self._key = folder, 0.0, _digest(decided_by)

    def __call__(self, name: str, compute: Callable[[], list[Row]]) -> list[Row]:
        """Return the rows of a part: those that are kept, or else computed, and then kept.

        Args:
          name: of the part; no other of the table has it.
          compute: makes the rows, of numbers and words.

        Raises:
          OSError: the disk is full, or the folder is gone.
        """
        path = self.folder / f"part.{self._key}.{_digest(name)}.json"
        if path.exists() and (saved := _read(path)) is not None:
            self.seconds += saved["seconds"]
            return saved["rows"]
        start = time.perf_counter()
        rows = compute()
        seconds = time.perf_counter() - start
        content = {"name": name, "crc32": _checksum(rows), "seconds": seconds, "rows": rows}
        write_bytes(path, json.dumps(content).encode())
        return rows

    def finished(self) -> int:
        """Return how many parts are there to go on with."""
        return len(list(self.folder.glob(f"part.{self._key}.*.json")))

    def clear(self) -> None:
        """Remove all parts, whatever decided them: their table is there."""
        for name in ("part.*.json", ".part.*.tmp"):  # the latter of writes that a kill cut
            for path in self.folder.glob(name):
                path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """Read a part; None: it is damaged, which is said."""
    try:
        saved = read_json(path)
        if saved["crc32"] == _checksum(saved["rows"]) and saved["seconds"] >= 0.0:
            return saved
    except (OSError, ValueError, KeyError, TypeError):
        pass
    say(f"{path} is damaged: this part is made again")
    return None


def _checksum(rows: list[Row]) -> int:
    return zlib.crc32(json.dumps(rows).encode())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
