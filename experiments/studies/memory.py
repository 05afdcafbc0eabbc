"""The memory that waves of runs take while they are at work, as their compiled programs say."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def bytes_of(compiled: Any) -> int:
    """Return what a compiled program takes: its arrays, and those that it computes with.

    0 where the compiler does not say.
    """
    found = compiled.memory_analysis()
    if found is None:
        return 0
    outputs = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + outputs + found.temp_size_in_bytes


class Budget:
    """Bytes that waves share: one that would take more than is left waits for another to end."""

    def __init__(self, limit: int) -> None:
        self._limit, self._left = limit, limit
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Hold so many bytes, once they are free.

        Raises:
          ValueError: there are not that many.
        """
        if size > self._limit:
            raise ValueError(
                f"one wave takes {size / 1e9:.3g} GB with all that it computes with, and there "
                f"are {self._limit / 1e9:.3g}: use a smaller --width, capacity or batch"
            )
        with self._changed:
            self._changed.wait_for(lambda: size <= self._left)
            self._left -= size
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()
