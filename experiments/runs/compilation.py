"""Compiled programs that are kept between runs: the second start of a command need not compile.

JAX's persistent compilation cache does the work; numbers are the same with and without it. Here is
decided where it lies, how large it grows, and what happens if it can't be used: never the end of a
run.
"""

import builtins
import contextlib
import hashlib
import os
import platform
import re
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

from experiments.analysis import files
from experiments.runs import log

OFF: Literal["off"] = "off"

# What takes less time to compile is not worth a file: reading it back takes about as long.
_LEAST_SECONDS = 0.1
# JAX has a bound of its own, which takes a lock at every read, and breaks down for good where a
# process was killed between the two files that it then writes for each program.
_MOST_BYTES, _LEFT_BYTES = 10**9, 75 * 10**7
_ENTRY = re.compile(r".+-[0-9a-f]{64}-(cache|atime)")
# What JAX warns of: reading or writing, the program's name, the exception's, and what it says.
_WARNING = re.compile(
    r"Error (reading|writing) persistent compilation cache entry for '(.+?)': (\w+): (.*)", re.S
)
_AT_WORK = 60  # seconds in which another process has surely finished writing a file


@contextlib.contextmanager
def kept(asked: Path | Literal["off"] | None) -> Iterator[None]:
    """Keep what is compiled meanwhile, and use what was kept before.

    Many processes may do so at once. A folder that can't be used is said in one line, and nothing
    is kept then.

    Args:
      asked: a folder; "off"; or None: where JAX has been told to, by JAX_COMPILATION_CACHE_DIR or
        otherwise, or else in the user's cache folder.

    Raises:
      ValueError: the folder that was asked for can't be made or written to.
    """
    if asked is None and jax.config.jax_compilation_cache_dir:
        yield
        return
    folder = None if asked == OFF else _made(asked)
    least = "jax_persistent_cache_min_compile_time_secs"
    changes: dict[str, Any] = {"jax_compilation_cache_dir": folder and str(folder)}
    if least.upper() not in os.environ:
        changes[least] = _LEAST_SECONDS
    with contextlib.ExitStack() as stack:
        for name, value in changes.items():
            stack.callback(jax.config.update, name, getattr(jax.config, name))
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX may have begun to use another folder
        stack.callback(compilation_cache.reset_cache)
        if folder is not None:
            trim(folder)
            stack.enter_context(warnings.catch_warnings())
            warnings.showwarning = _in_one_line(folder, warnings.showwarning)
        yield


def _made(asked: Path | None) -> Path | None:
    """Return the folder for this machine's programs, which then exists; None if it can't be used.

    Raises:
      ValueError: it can't be used, and was asked for.
    """
    root = asked or platformdirs.user_cache_path("jaxreplay", appauthor=False) / "compilation"
    # JAX's key of a program does not surely tell machines apart that share a home, and a program
    # for another's instructions could end the process.
    folder = root.absolute() / processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else "no permission"
    except OSError as error:
        why = error.strerror or str(error)
    if why and asked is not None:
        raise ValueError(
            f"--compilation-cache {asked}: nothing can be kept there ({why}): name another folder, "
            "or say off"
        )
    if why:
        log.say(
            f"compiled programs can't be kept in {root} ({why}): name another folder by "
            "--compilation-cache, or say off"
        )
    return None if why else folder


def processor() -> str:
    """Return a digest of the processor that programs are compiled for."""
    facts = {platform.machine(), platform.processor()}
    told = ("model name", "flags", "CPU part", "Features")  # x86 and ARM
    with contextlib.suppress(OSError):  # Linux alone has it
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts |= {line for line in lines if line.partition(":")[0].strip() in told}
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()[:8]


def trim(folder: Path, most: int = _MOST_BYTES, left: int = _LEFT_BYTES) -> None:
    """Forget the programs that have not been used for longest, if all together are too large.

    Args:
      folder: of the programs; other files in it are left alone.
      most: bytes that they may have.
      left: bytes at most that they then have.
    """
    found = []
    for path in _entries(folder):
        with contextlib.suppress(FileNotFoundError):  # another process forgets, too
            about = path.stat()
            found.append((max(about.st_atime, about.st_mtime), about.st_size, path))
    size = sum(each for _, each, _ in found)
    if size <= most:
        return
    for _, each, path in sorted(found):
        if size <= left:
            return
        _forget(path)
        size -= each


def _entries(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if _ENTRY.fullmatch(path.name)]


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):  # then it stays, or is gone already
        path.unlink()


def _in_one_line(folder: Path, otherwise: Callable[..., None]) -> Callable[..., None]:
    """Return a `warnings.showwarning` that says once what is wrong in the folder, and mends it."""
    said = set[str]()

    def say(line: str) -> None:
        if line not in said:
            said.add(line)
            log.say(line)

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        found = _WARNING.match(str(message))
        if found is None:
            otherwise(message, *where, **more)
            return
        doing, program, error, why = found.groups()
        kind = getattr(builtins, error, Exception)
        if doing == "writing" or issubclass(kind, OSError):
            say(f"compiled programs can't be kept in {folder} ({' '.join(why.split())})")
        else:
            _forget_damaged(folder, program)
            say(f"a compiled program in {folder} was damaged, and is compiled anew")

    return show


def _forget_damaged(folder: Path, program: str) -> None:
    """Forget the damaged programs of a name, for JAX does not write a file anew that is there.

    Damaged are those that a killed process had not finished; one that grows is left alone.
    """
    for path in _entries(folder):
        with contextlib.suppress(FileNotFoundError):
            same = path.name.rpartition("-")[0].rpartition("-")[0] == program
            old = time.time() - path.stat().st_mtime > _AT_WORK
            if same and old and not _is_whole(path):
                _forget(path)


def _is_whole(path: Path) -> bool:
    """Tell whether a program is complete; where it can't be known, as of zstd, it is not."""
    try:
        zlib.decompress(files.read_bytes(path))
    except (zlib.error, files.Unreadable):
        return False
    return True
