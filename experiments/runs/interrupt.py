"""Signals that end a run: Ctrl-C, and those that schedulers send before they kill."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from experiments.runs import log

_SCHEDULERS = (signal.SIGTERM, signal.SIGUSR1)  # as Slurm's --signal
INTERRUPTED, TERMINATED = 130, 143  # exit codes, as shells give them


class Terminated(KeyboardInterrupt):
    """A scheduler wants the process to end; to the rest of the code it is like Ctrl-C."""


class Stopped(Exception):
    """A run stopped early. The message states the reason, and how to continue.

    Attributes:
      exit_code: exit code of the process: 1 after an error, or the code of shells for a signal.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def exit_code(error: KeyboardInterrupt) -> int:
    """Return the exit code of a process that ends so."""
    return TERMINATED if isinstance(error, Terminated) else INTERRUPTED


class Asked:
    """Whether somebody has asked the run to stop; called, it says so.

    Attributes:
      exit_code: of the process, if so.
    """

    def __init__(self) -> None:
        self._asked, self.exit_code = threading.Event(), INTERRUPTED

    def __call__(self) -> bool:
        return self._asked.is_set()

    def ask(self, number: int) -> None:
        """Note a signal."""
        self.exit_code = INTERRUPTED if number == signal.SIGINT else TERMINATED
        self._asked.set()


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let the signals of schedulers raise Terminated, as Ctrl-C raises KeyboardInterrupt."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Terminated

    with _handled(_SCHEDULERS, end):
        yield


@contextlib.contextmanager
def deferred(until: str) -> Iterator[Asked]:
    """Only note the first signal; let the second one stop the process at once.

    Args:
      until: when the run will stop, for the message.
    """
    asked = Asked()
    with contextlib.ExitStack() as stack:

        def note(number: int, frame: FrameType | None) -> None:
            del frame
            asked.ask(number)
            stack.close()  # from now on, signals do what they did before
            log.say(f"stopping {until}, with a checkpoint; Ctrl-C again stops at once")

        stack.enter_context(_handled((signal.SIGINT, *_SCHEDULERS), note))
        yield asked


@contextlib.contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach only the main thread
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
