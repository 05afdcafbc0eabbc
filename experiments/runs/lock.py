"""One process at a time in a folder."""

import contextlib
import errno
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from experiments.runs.folder import LOCK, make
from jaxreplay.saving import check_writable

_LINE = re.compile(r"process \d+ on .*\n?")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if it is not there.

    The kernel lets go of the lock when its process ends, however that happens, so a file left
    behind locks nobody out. Network file systems pass it on to other machines where they can. A
    folder that is empty in the end is removed, unless it was there and empty before.

    Raises:
      ValueError: another process is in it, says which; it can't be made; or something that is no
        lock of ours goes by the lock's name.
    """
    was_empty = folder.is_dir() and all(path.name == LOCK for path in folder.iterdir())
    make(folder)
    file = _acquire(folder)
    try:
        yield
    finally:
        if _is_still(folder / LOCK, file):  # else the folder was deleted, or made anew
            (folder / LOCK).unlink()
        file.close()
        if not was_empty:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _acquire(folder: Path) -> IO[str]:
    path = folder / LOCK
    while True:
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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
    left = file.read()
    if left and not _LINE.fullmatch(left):
        file.close()
        raise ValueError(f"{path} is no lock of ours: choose another --out")
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def _open(path: Path) -> IO[str]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        check_writable(path, "choose another --out")
        return os.fdopen(os.open(path, flags, 0o666), "r+")
    except OSError as error:
        what = "a link" if error.errno == errno.ELOOP else error.strerror
        raise ValueError(f"{path} can't be used ({what}): choose another --out") from None


def _is_still(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
