"""Compiled programs: their cache between runs, and errors about memory.

JAX's persistent compilation cache stores the programs. It does not change any results.
This module sets the folder and the size limit of the cache. If the default folder is unusable,
nothing is cached.
"""

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

from experiments.runs import log

OFF: Literal["off"] = "off"
_LESS_MEMORY = "a smaller capacity, batch or network, or fewer seeds, --eval-episodes or --inspect"
_DEFAULTS = {  # settings of JAX, unless environment variables set them
    # Loading a program takes about 0.1 s, so shorter compilations are not worth a file.
    "jax_persistent_cache_min_compile_time_secs": 0.1,
    "jax_compilation_cache_max_size": 10**9,  # bytes
}


@contextlib.contextmanager
def cache_programs(asked: Path | Literal["off"] | None) -> Iterator[None]:
    """Cache the programs compiled within the context, and load programs from the cache.

    Several processes may share a folder. If the default folder is unusable, a warning is printed
    and nothing is cached.

    Args:
      asked: folder, "off", or None for JAX's configured folder (for example by
        JAX_COMPILATION_CACHE_DIR) or else the user's cache folder.

    Raises:
      ValueError: the folder `asked` cannot be created or written.
    """
    if asked is None and jax.config.jax_compilation_cache_dir:
        yield
        return
    folder = None if asked == OFF else _made(asked)
    unset = {name: own for name, own in _DEFAULTS.items() if name.upper() not in os.environ}
    with contextlib.ExitStack() as stack:
        for name, value in {"jax_compilation_cache_dir": folder and str(folder), **unset}.items():
            stack.callback(jax.config.update, name, getattr(jax.config, name))
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX may already use another folder
        stack.callback(compilation_cache.reset_cache)
        if folder is not None:
            # JAX stops storing programs if one has no file with its time of use, for example if the
            # process was killed between both writes or the cache was used without a size limit.
            for path in folder.glob("*-cache"):
                path.with_name(f"{path.name.removesuffix('-cache')}-atime").touch()
        yield


def _made(asked: Path | None) -> Path | None:
    """Make the folder of programs for this machine; return None if the default is unusable."""
    root = asked or platformdirs.user_cache_path("jaxreplay", appauthor=False) / "compilation"
    # Machines with different instruction sets can share a home folder and JAX's key of a program,
    # and a program with unknown instructions crashes the process.
    folder = root.absolute() / processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else "no permission"
    except OSError as error:
        why = error.strerror or str(error)
    if not why:
        return folder
    line = f"compiled programs can't be kept in {root} ({why}): give another folder, or 'off', by"
    if asked is not None:
        raise ValueError(f"{line} --compilation-cache")
    log.say(f"{line} --compilation-cache")
    return None


def processor() -> str:
    """Return a digest of the processor for which programs are compiled."""
    facts = {platform.machine(), platform.processor()}
    names = ("model name", "flags", "CPU part", "Features")  # fields on x86 and ARM
    with contextlib.suppress(OSError):  # the file exists only on Linux
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts |= {line for line in lines if line.partition(":")[0].strip() in names}
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()[:8]


def out_of_memory(error: Exception) -> str:
    """Return a message with a remedy if an error says that a device is out of memory, or ""."""
    line = str(error).partition("\n")[0].partition("RESOURCE_EXHAUSTED: ")[2]
    return line and f"the device is out of memory ({line}): use {_LESS_MEMORY}"
