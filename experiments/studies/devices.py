"""Devices of a study, and the memory of batches on them."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from experiments.runs.assembly import device_bytes

_SHARE = 0.8  # usable share of free memory; the rest is for temporary arrays of programs


class Slot(NamedTuple):
    """A core or an accelerator of a cluster's node."""

    platform: str
    kind: str  # kind of device, as reported by JAX
    node: str  # name of the node
    bytes: int  # memory available to runs


Device = jax.Device | Slot


def cores() -> int:
    """Return the number of threads that XLA uses on CPU with a single CPU device.

    It determines how XLA splits large matrix products, which affects the last digits of numbers.
    """
    told = os.environ.get("NPROC", "")  # a variable that XLA reads
    return int(told) if told.isdecimal() else len(os.sched_getaffinity(0))


def free_bytes(devices: Sequence[Device]) -> int:
    """Return the bytes available to runs on all devices together."""
    slots = [device for device in devices if isinstance(device, Slot)]
    if slots:
        return min(slot.bytes for slot in slots) * len(slots)
    if devices[0].platform != "cpu":
        return int(_SHARE * device_bytes() * len(devices))
    return int(_SHARE * _free_memory())


def is_cpu(devices: Sequence[Device]) -> bool:
    """Return whether the devices are cores of a CPU."""
    return devices[0].platform == "cpu"


def _free_memory() -> int:
    """Return the free memory of the machine, or all of it if the free part is unknown."""
    try:
        with open("/proc/meminfo") as file:
            sizes = dict(line.split(":") for line in file)
        return int(sizes["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return device_bytes()


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
