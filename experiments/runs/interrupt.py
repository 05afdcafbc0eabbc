"""Signals that end a run: Ctrl-C, and signals that schedulers send before SIGKILL."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from experiments.runs import log

_SCHEDULERS = (signal.SIGTERM, signal.SIGUSR1)  # the latter for Slurm's --signal
INTERRUPTED, TERMINATED = 130, 143  # exit codes in the convention of shells


class Terminated(KeyboardInterrupt):
    """A scheduler ends the process; handlers of KeyboardInterrupt also handle this."""


class Stopped(Exception):
    """A run stopped early; the message gives the reason and how to continue.

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


class Asked:
    """Callable that returns whether a signal has requested the run to stop.

    Attributes:
      number: number of the signal, or None.
    """

    number: int | None = None

    def __call__(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """Exit code of the process for this signal."""
        return INTERRUPTED if self.number in (None, signal.SIGINT) else TERMINATED


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated at signals of schedulers, as Python raises KeyboardInterrupt at Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Terminated

    with _handled(_SCHEDULERS, end):
        yield


@contextlib.contextmanager
def defer_signals(until: str) -> Iterator[Asked]:
    """Record the first signal, and let the second one stop the process at once.

    `until` is the time at which the run stops, for the message: "now", "at the next log point".
    """
    asked = Asked()
    with contextlib.ExitStack() as stack:

        def note(number: int, frame: FrameType | None) -> None:
            del frame
            asked.number = number
            stack.close()  # restores previous handlers
            log.say(f"stopping {until}, with a checkpoint; Ctrl-C again stops at once")

        stack.enter_context(_handled((signal.SIGINT, *_SCHEDULERS), note))
        yield asked


@contextlib.contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
