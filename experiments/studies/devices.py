"""Devices of a study, and the memory that its batches of runs take.

A small compiled program is not faster on several cores, because the overhead of distributing its
work is larger than the gain. Several single-threaded calls of the program are faster: several
threads call it, and XLA executes the calls concurrently, even on one device.
"""

import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import jax

from experiments.runs.assembly import device_bytes

_SHARE = 0.8  # usable share of free memory; the rest is for temporary arrays of programs
_MAX_PROGRAMS = 8
_MIN_SEEDS = 2  # per call of a program; with a single seed, the time per seed is 25 % longer


class Slot(NamedTuple):
    """A core or an accelerator of a cluster's node."""

    platform: str
    kind: str  # kind of device, as reported by JAX
    node: str  # name of the node
    bytes: int  # memory available to runs


Device = jax.Device | Slot
Unit = tuple[Device, ...]  # devices that train a batch of runs together


def width_of(seeds: int) -> int:
    """Return the seeds per call of a program on CPU, where 1, 2, 4 or 8 calls share `seeds`.

    The result depends only on the number of seeds, never on the machine, so that each seed gives
    the same numbers bit for bit on one core and on eight.
    """
    programs = 1
    while 2 * programs <= min(_MAX_PROGRAMS, seeds // _MIN_SEEDS):
        programs *= 2
    return math.ceil(seeds / programs)


def choose(count: int | None = None) -> tuple[jax.Device, ...]:
    """Return the devices of this machine: on CPU, the same device once per core.

    Args:
      count: number of cores or accelerators; by default, all.

    Raises:
      ValueError: the machine has fewer than `count` accelerators.
    """
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        return tuple(devices[:1] * (count or _cores()))
    if count is not None and count > len(devices):
        raise ValueError(
            f"devices is {count}, but this machine has {len(devices)}: use {len(devices)} or fewer"
        )
    return tuple(devices[:count])


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """Return the number of threads that XLA uses on CPU with a single CPU device.

    The number determines how XLA splits large matrix products, and so affects the last digits.
    """
    told = os.environ.get("NPROC", "")  # a variable that XLA reads
    return int(told) if told.isdecimal() else len(os.sched_getaffinity(0))


def is_cpu(device: Device) -> bool:
    """Return whether a device is a core of a CPU."""
    return device.platform == "cpu"


def in_words(devices: Sequence[Device]) -> str:
    """Return the number and kind of devices, such as "2 cores"."""
    first, several = devices[0], "s" * (len(devices) > 1)
    if is_cpu(first):
        return f"{len(devices)} core{several}"
    kind = first.kind if isinstance(first, Slot) else first.device_kind
    return f"{len(devices)} device{several} ({kind})"


def free_bytes(devices: Sequence[Device]) -> int:
    """Return the bytes available to runs on all devices together."""
    slots = [device for device in devices if isinstance(device, Slot)]
    if slots:
        return min(slot.bytes for slot in slots) * len(slots)
    if not is_cpu(devices[0]):
        return int(_SHARE * device_bytes() * len(devices))
    return int(_SHARE * _free_memory())


def _free_memory() -> int:
    """Return the free memory of the machine, or all of it if the free part is unknown."""
    try:
        with open("/proc/meminfo") as file:
            sizes = dict(line.split(":") for line in file)
        return int(sizes["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return device_bytes()


class Budget:
    """Memory that batches of runs share; a batch waits until enough memory is free."""

    def __init__(self, limit: int) -> None:
        self._limit, self._left = limit, limit
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes for the context, once they are free.

        Raises:
          ValueError: `size` is above the limit of the budget.
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
