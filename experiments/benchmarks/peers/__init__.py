"""Replay buffers to compare ours with, each behind one small protocol (`types.Buffer`).

Packages of peers are optional: missing ones are named, with how to install them.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

from experiments.benchmarks.peers.types import Peer
from experiments.installation.commands import install, install_package

_EXTRA = install("bench")
_TORCH = "brings PyTorch, by default with gigabytes of CUDA"


class Source(NamedTuple):
    """A module of peers and the package that it needs."""

    module: str  # in this package
    package: str | None  # its name, on PyPI and for import; None: no package beyond our own
    install: str = ""


SOURCES = (
    Source("ours", None),
    Source("flashbax", "flashbax", _EXTRA),
    Source("cumsum", None),
    Source("compiled_loop", "numba", _EXTRA),
    Source("cpprb", "cpprb", f"{_EXTRA}, Python 3.12 at most"),
    Source("tianshou", "tianshou", f"{install_package('tianshou')} ({_TORCH})"),
    Source("torchrl", "torchrl", f"{install_package('torchrl')} ({_TORCH})"),
)


class Found(NamedTuple):
    """What can be compared, and what can't."""

    peers: tuple[Peer, ...]
    missing: dict[str, str]  # package -> why, and how to install it
    versions: dict[str, str]  # of the packages that are there


def find(modules: Sequence[str] | None = None) -> Found:
    """Import the peers whose packages are installed.

    Args:
      modules: names of sources; None: all of them.
    """
    peers: list[Peer] = []
    missing, versions = {}, {}
    for source in SOURCES:
        if modules is not None and source.module not in modules:
            continue
        if source.package and importlib.util.find_spec(source.package) is None:
            missing[source.package] = f"not installed: {source.install}"
            continue
        try:
            module = importlib.import_module(f"{__name__}.{source.module}")
            peers += module.peers()
        except (ImportError, OSError, RuntimeError) as error:
            line = " ".join(str(error).split())[:200]
            missing[source.package or source.module] = f"installed, but does not work here: {line}"
            continue
        if source.package:
            versions[source.package] = metadata.version(source.package)
    return Found(tuple(peers), missing, versions)
