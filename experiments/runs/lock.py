"""One process at a time in a folder."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from experiments.runs.folder import LOCK, make


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if it is not there.

    The kernel lets go of the lock when its process ends, however that happens, so a file left
    behind locks nobody out. Network file systems pass it on to other machines where they can.

    Raises:
      ValueError: another process is in it, says which; or it can't be made.
    """
    make(folder)
    file = _acquire(folder)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # the folder was deleted meanwhile
            (folder / LOCK).unlink()
        file.close()


def _acquire(folder: Path) -> IO[str]:
    path = folder / LOCK
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip() or "another process"
            file.close()
            raise ValueError(
                f"{folder} is in use by {who}: wait until it ends, or choose another --out"
            ) from None
        except OSError:
            pass  # a file system without locks
        if _is_still(path, file):
            break
        file.close()  # whoever held it has ended, and taken the file along
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def _is_still(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
