"""Signals that end a run: Ctrl-C, and signals that schedulers send before SIGKILL."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

_SCHEDULERS = (signal.SIGTERM, signal.SIGUSR1)  # the latter for Slurm's --signal
_REPEATED = 0.5  # seconds in which a signal may arrive twice, from a terminal and from a wrapper
INTERRUPTED, TERMINATED = 130, 143  # exit codes in the convention of shells


class Terminated(KeyboardInterrupt):
    """Raised when a scheduler ends the process; handlers of KeyboardInterrupt also handle it."""


class Stopped(Exception):
    """Raised when a run stops early; the message gives the reason and how to continue.

    Attributes:
      reason: the reason without the way to continue.
      exit_code: exit code of the process: 1 for an error, 130 or 143 for a signal.
    """

    def __init__(self, reason: str, exit_code: int, how: str = "") -> None:
        super().__init__(f"{reason}: {how}" if how else reason)
        self.reason, self.exit_code = reason, exit_code


def exit_code(error: KeyboardInterrupt) -> int:
    """Return the exit code of a process that this exception ends."""
    return TERMINATED if isinstance(error, Terminated) else INTERRUPTED


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated at signals of schedulers, as Python raises KeyboardInterrupt at Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = {number: signal.signal(number, end) for number in _SCHEDULERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class TimeOver(Exception):
    """Raised when the time limit of a study is over."""


@contextlib.contextmanager
def deferred(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first signal; raise the signal's exception at the end of the `with` block.

    A second signal raises the exception at once. `stop` may run between any two instructions, so it
    must not wait for a lock.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_SCHEDULERS)}
    raising = {number: handler for number, handler in before.items() if callable(handler)}
    received: list[tuple[int, float]] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append((number, time.monotonic()))
        if len(received) == 1:
            stop()
        elif received[-1][1] > received[0][1] + _REPEATED:
            raising[signal.Signals(number)](number, frame)

    for number in raising:
        signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
    if received:
        number = signal.Signals(received[0][0])
        raising[number](number, None)
