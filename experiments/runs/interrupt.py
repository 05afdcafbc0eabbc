"""Ctrl-C that waits for a good moment."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from experiments.runs import log


@contextlib.contextmanager
def deferred(until: str) -> Iterator[Callable[[], bool]]:
    """Only note the first Ctrl-C; let the second one stop the process at once.

    Args:
      until: when the run will stop, for the message.

    Yields:
      A function that returns whether Ctrl-C was pressed.
    """
    asked = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        asked.set()
        signal.signal(signal.SIGINT, before)
        log.say(f"stopping {until}, with a checkpoint; Ctrl-C again stops at once")

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # signals reach only the main thread
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
