"""Methods with options that fit the small replays of tests, and the methods of quick tests."""

from collections.abc import Iterable

import pytest

from jaxreplay.methods import METHODS
from jaxreplay.sampler import Method

SHORT = {"windows": {"length": 4}, "sequences": {"length": 4, "period": 2}, "slices": {"length": 4}}

# Methods with the most distinct code; the others consist of parts of these.
DISTINCT = (
    "uniform", "per", "rank", "pser", "ners", "refer", "her", "reshuffled", "reaper", "sequences",
)  # fmt: skip


def quick(names: Iterable[str], of: Iterable[str] = DISTINCT) -> list[object]:
    """Return names as test parameters, and mark all but those in `of` as slow.

    The contract checks of `make test` run for all methods. Tests of JAX's settings and
    transformations need only methods with distinct code.
    """
    return [pytest.param(name, marks=() if name in of else pytest.mark.slow) for name in names]


def short(name: str, updates: int | None = None) -> Method:
    """Return a method for small replays, with schedules for `updates` if given."""
    config = METHODS[name].config(**SHORT.get(name, {}))
    return METHODS[name].method(config if updates is None else config.for_run(updates))
