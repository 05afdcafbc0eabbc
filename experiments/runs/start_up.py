"""How long starting up took: what JAX spent on tracing, lowering, compiling, or loading a program.

JAX tells its listeners how long each of these took when it has ended. One may hold others, as the
trace of a function holds those of the functions it calls, and programs may be compiled side by
side: what counts here is the time during which there was at least one. Loading a program that was
kept counts as compiling it, for JAX tells no difference.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jax import monitoring

_EVENTS = frozenset(
    f"/jax/core/compile/{name}_duration"
    for name in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)


class Spent(NamedTuple):
    """Seconds that passed, and during how many of them JAX made programs."""

    seconds: float = 0.0
    compiling: float = 0.0


@contextlib.contextmanager
def measured(before: Spent = Spent()) -> Iterator[Callable[[], Spent]]:
    """Give a function that returns what was spent since it was last called.

    Args:
      before: what the first call counts, too, beside what was spent since the start.
    """
    began, spans, lock = time.perf_counter(), list[tuple[float, float]](), threading.Lock()

    def told(event: str, seconds: float, **about: Any) -> None:
        if event in _EVENTS:
            end = time.perf_counter()
            with lock:
                spans.append((end - seconds, end))

    def spent() -> Spent:
        nonlocal began, before
        now = time.perf_counter()
        with lock:
            compiling = covered([(max(start, began), end) for start, end in spans])
            spans.clear()
        found = Spent(before.seconds + now - began, before.compiling + compiling)
        began, before = now, Spent()
        return found

    monitoring.register_event_duration_secs_listener(told)
    try:
        yield spent
    finally:
        monitoring.unregister_event_duration_listener(told)


def covered(spans: list[tuple[float, float]]) -> float:
    """Return how much of a line spans cover, those that overlap counted once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
