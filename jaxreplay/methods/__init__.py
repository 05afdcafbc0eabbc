"""Replay methods, one file each; `METHODS` maps their names to config and factory.

To add a method, write a file with a frozen config dataclass and a `method(config, updates)` that
returns a `jaxreplay.types.Method`, and add a line here.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxreplay.methods import (
    ere,
    ero,
    lap,
    latest,
    ners,
    pal,
    per,
    pser,
    rank,
    refer,
    uniform,
    windows,
)
from jaxreplay.types import Method


class MethodEntry(NamedTuple):
    """How to make a method from its options."""

    config: type[Any]  # a frozen dataclass of `option` fields
    method: Callable[[Any, int | None], Method]  # (config, the run's gradient steps) -> Method
    needs: frozenset[str] = frozenset()  # of an agent: feedback that its sampler reads, and
    # "td_loss" if its objective replaces the loss of a scalar TD error, "on_policy" if only
    # agents that learn on-policy make sense
    gives: frozenset[str] = frozenset()  # to agents that need it; an option so named switches it on


METHODS: Mapping[str, MethodEntry] = MappingProxyType(
    {
        "uniform": MethodEntry(uniform.UniformConfig, uniform.method),
        "per": MethodEntry(per.PERConfig, per.method, frozenset({"td_error"})),
        "rank": MethodEntry(rank.RankConfig, rank.method, frozenset({"td_error"})),
        "pser": MethodEntry(pser.PSERConfig, pser.method, frozenset({"td_error"})),
        "lap": MethodEntry(lap.LAPConfig, lap.method, frozenset({"td_error", "td_loss"})),
        "pal": MethodEntry(pal.PALConfig, pal.method, frozenset({"td_loss"})),
        "ere": MethodEntry(ere.EREConfig, ere.method),
        "ero": MethodEntry(ero.EROConfig, ero.method, frozenset({"td_error"})),
        "ners": MethodEntry(ners.NERSConfig, ners.method, frozenset({"td_error", "target"})),
        "refer": MethodEntry(
            refer.ReFERConfig, refer.method, frozenset({"log_ratio"}), frozenset({"returns"})
        ),
        "windows": MethodEntry(
            windows.WindowsConfig, windows.method, gives=frozenset({"trajectories"})
        ),
        "latest": MethodEntry(
            latest.LatestConfig, latest.method, frozenset({"on_policy"}), frozenset({"on_policy"})
        ),
    }
)
