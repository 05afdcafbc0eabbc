"""Signals that end a run: Ctrl-C, and signals of schedulers before they kill a process."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from experiments.runs import log

_SCHEDULERS = (signal.SIGTERM, signal.SIGUSR1)  # the latter by Slurm's --signal
INTERRUPTED, TERMINATED = 130, 143  # exit codes that shells use


class Terminated(KeyboardInterrupt):
    """A scheduler ends the process; code that handles Ctrl-C handles this too."""


class Stopped(Exception):
    """A run stopped early; the message gives the reason and how to continue.

    Attributes:
      reason: the reason alone.
      exit_code: exit code of the process: 1 after an error, or the code of shells for a signal.
    """

    def __init__(self, reason: str, exit_code: int, how: str = "") -> None:
        super().__init__(f"{reason}: {how}" if how else reason)
        self.reason, self.exit_code = reason, exit_code


def exit_code(error: KeyboardInterrupt) -> int:
    """Return the exit code of a process that ends by this exception."""
    return TERMINATED if isinstance(error, Terminated) else INTERRUPTED


class Asked:
    """Whether the user or a scheduler has asked the run to stop; an instance is a predicate.

    Attributes:
      number: the signal, or None.
    """

    number: int | None = None

    def __call__(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """Exit code of the process in that case."""
        return INTERRUPTED if self.number in (None, signal.SIGINT) else TERMINATED


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let the signals of schedulers raise Terminated, as Ctrl-C raises KeyboardInterrupt."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Terminated

    with _handled(_SCHEDULERS, end):
        yield


@contextlib.contextmanager
def defer_signals(until: str) -> Iterator[Asked]:
    """Only record the first signal; the second one stops the process at once.

    Args:
      until: when the run will stop, for the message.
    """
    asked = Asked()
    with contextlib.ExitStack() as stack:

        def note(number: int, frame: FrameType | None) -> None:
            del frame
            asked.number = number
            stack.close()  # restores the previous handlers
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
