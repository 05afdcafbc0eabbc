"""Memory of running batches, as reported by their compiled programs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def bytes_of(compiled: Any) -> int:
    """Return the bytes of a compiled program's inputs, outputs and temporary arrays.

    The result is 0 if the compiler does not report them.
    """
    found = compiled.memory_analysis()
    if found is None:
        return 0
    outputs = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + outputs + found.temp_size_in_bytes


class Budget:
    """Memory shared by batches; a batch waits until enough of it is free."""

    def __init__(self, limit: int) -> None:
        self._limit, self._left = limit, limit
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes for the context, once they are free.

        Raises:
          ValueError: `size` is above the limit.
        """
        if size > self._limit:
            raise ValueError(
                f"one batch of runs takes {size / 1e9:.3g} GB including temporary arrays, more "
                f"than the {self._limit / 1e9:.3g} GB available: use a smaller --width, capacity "
                "or batch size"
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
