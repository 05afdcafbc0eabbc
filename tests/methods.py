"""Methods with options that fit the small replays of tests, and the methods of quick tests."""

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace

import jax
import pytest

from jaxreplay import Replay, testing
from jaxreplay.methods import METHODS
from jaxreplay.sampler import Method

Check = Callable[[testing.Case], None]
SHORT = {"windows": {"length": 4}, "sequences": {"length": 4, "period": 2}, "slices": {"length": 4}}

# Methods with the most distinct code; the others consist of parts of these. ReaPER, whose nested
# loops take longest to compile, is checked by the contract and by tests of its own.
DISTINCT = (
    "uniform", "per", "rank", "pser", "ners", "refer", "her", "reshuffled", "sequences",
)  # fmt: skip


def quick(names: Iterable[str], of: Iterable[str] = DISTINCT) -> list[object]:
    """Return names as test parameters, and mark all but those in `of` as slow.

    The contract checks of `make test` run for all methods. Tests of JAX's settings and
    transformations need only methods with distinct code.
    """
    return [pytest.param(name, marks=() if name in of else pytest.mark.slow) for name in names]


def checks(
    names: Iterable[str], slow: Iterable[str], few: Mapping[Check, Iterable[str]]
) -> list[object]:
    """Return pairs of a name and a contract check as parameters of a test.

    Names in `slow` are slow tests, and checks in `few` are quick tests only of the names given
    there.
    """

    def is_slow(name: str, check: Check) -> bool:
        return name in slow or name not in few.get(check, (name,))

    return [
        pytest.param(
            name, check, id=f"{name}-{check.__name__}",
            marks=pytest.mark.slow if is_slow(name, check) else (),
        )
        for name in names
        for check in testing.CHECKS
    ]  # fmt: skip


def compiled(replay: Replay) -> SimpleNamespace:
    """Return the functions of a replay as compiled functions.

    Outside of jit, JAX compiles every operation separately, which takes seconds.
    """
    names = ("init", "add", "sample", "update", "probability", "metrics", "end_episodes")
    return SimpleNamespace(**{name: jax.jit(getattr(replay, name)) for name in names})


def short(name: str, updates: int | None = None) -> Method:
    """Return a method for small replays, with schedules for `updates` if given."""
    config = METHODS[name].config(**SHORT.get(name, {}))
    return METHODS[name].method(config if updates is None else config.for_run(updates))
