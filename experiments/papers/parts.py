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

FORMAT = 1


class Parts:
    """What is finished of a table, a file for each part: called, it returns a part's rows.

    Parts of other settings, or made on something else, are not looked at, nor are those of other
    code unless they are welcome: each lies in a file of its own, so that going back to them goes on
    with them.

    Attributes:
      folder: of the files.
      other_code: parts of other code are welcome where there is none of this.
      seconds: that the parts took which were there before.
      codes: the versions of the code that made them, where it was another.
    """

    def __init__(
        self, folder: Path, settings: Any, made_on: Any, code: str, other_code: bool = False
    ) -> None:
        """Look for parts in a folder, which may be missing as long as nothing is written.

        Args:
          folder: of the files; no other process writes there.
          settings: what decides the numbers besides the code, as JSON.
          made_on: what else they may hang on, such as device and versions, as JSON.
          code: the version of the code.
          other_code: parts of other versions are welcome, too.
        """
        self.folder, self._code, self.other_code = folder, code, other_code
        self._settings, self._made_on = _digest(settings), _digest(made_on)
        self._asked: set[str] = set()
        self.seconds, self.codes = 0.0, set[str]()

    def __call__(self, name: str, compute: Callable[[], list[Row]]) -> list[Row]:
        """Return the rows of a part: those that are kept, or else computed, and then kept.

        Args:
          name: of the part; no other of the table has it.
          compute: makes the rows, of numbers and words.

        Raises:
          OSError: the disk is full, or the folder is gone.
        """
        assert name not in self._asked, f"two parts are called {name}"
        self._asked.add(name)
        for path in self._paths(_digest(name)):
            if (saved := _read(path)) is not None:
                self.seconds += saved["seconds"]
                self.codes |= {saved["code"]} - {self._code}
                return saved["rows"]
        start = time.perf_counter()
        rows = compute()
        content = {
            "format": FORMAT, "name": name, "code": self._code, "crc32": _checksum(rows),
            "seconds": time.perf_counter() - start, "rows": rows,
        }  # fmt: skip
        write_bytes(self._path(self._code, _digest(name)), json.dumps(content).encode())
        return rows

    def finished(self) -> int:
        """Return how many parts are there to go on with."""
        return len({path.name.split(".")[4] for path in self._paths("*")})

    def of_other_code(self) -> dict[str, int]:
        """Return how many parts there are of other versions of the code."""
        versions = [path.name.split(".")[3] for path in self._all("*", "*")]
        return {each: versions.count(each) for each in sorted(set(versions) - {self._code})}

    def clear(self) -> None:
        """Remove the parts of these settings, whatever made them: their table is there."""
        for name in ("part.{}.*.json", ".part.{}.*.tmp"):  # the latter of writes that a kill cut
            for path in self.folder.glob(name.format(self._settings)):
                path.unlink(missing_ok=True)

    def _paths(self, name: str) -> list[Path]:
        """Return the files of a part that may be read, those of this code first."""
        own = self._all(self._code, name)
        return own + [path for path in self._all("*", name) if path not in own] * self.other_code

    def _all(self, code: str, name: str) -> list[Path]:
        return sorted(self.folder.glob(self._path(code, name).name))

    def _path(self, code: str, name: str) -> Path:
        return self.folder / f"part.{self._settings}.{self._made_on}.{code}.{name}.json"


def _read(path: Path) -> dict[str, Any] | None:
    """Read a part; None: it is damaged, which is said."""
    try:
        saved = read_json(path)
        if saved["format"] == FORMAT and saved["crc32"] == _checksum(saved["rows"]):
            _ = saved["seconds"] + 0.0, saved["code"]
            return saved
    except (OSError, ValueError, KeyError, TypeError):
        pass
    say(f"{path} is damaged: this part is made again")
    return None


def _checksum(rows: list[Row]) -> int:
    return zlib.crc32(json.dumps(rows).encode())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
