"""Replay buffers to compare with ours, pure functions or a `types.Buffer`.

Packages of peers are optional; `find` reports missing ones with their install commands.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

from experiments.benchmarks.peers.types import Peer
from experiments.installation.commands import install, install_package

_EXTRA = install("bench")


class Source(NamedTuple):
    """The package that a module of peers requires."""

    package: str | None  # on PyPI and for import; None: no further package
    install: str = ""


SOURCES = {
    "ours": Source(None),
    "flashbax": Source("flashbax", _EXTRA),
    "cpprb": Source("cpprb", f"{_EXTRA}, Python 3.12 at most"),
    "torchrl": Source(
        "torchrl", f"{install_package('torchrl')} (with PyTorch: gigabytes of CUDA by default)"
    ),
}


class Found(NamedTuple):
    """Available and missing peers."""

    peers: tuple[Peer, ...]
    missing: dict[str, str]  # package -> reason, with the install command
    versions: dict[str, str]  # of available packages


def find(modules: Sequence[str]) -> Found:
    """Import the peers of `modules`, keys of SOURCES, whose packages are installed."""
    peers: list[Peer] = []
    missing, versions = {}, {}
    for module in modules:
        package, hint = SOURCES[module]
        if package and importlib.util.find_spec(package) is None:
            missing[package] = f"not installed: {hint}"
            continue
        try:
            peers += importlib.import_module(f"{__name__}.{module}").peers()
        except (ImportError, OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            missing[package or module] = f"installed, but does not work here: {reason}"
            continue
        if package:
            versions[package] = metadata.version(package)
    return Found(tuple(peers), missing, versions)
