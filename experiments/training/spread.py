"""The layout of seeds over cores or accelerators: programs with a few seeds each.

A small program is not faster on several cores, because the overhead of distributing its work is
larger than the gain. Several single-threaded programs are faster. They are one compiled program
that several threads call; XLA executes the calls concurrently, even on one device.

The number of seeds in a program depends only on the number of seeds, never on the machine, so that
each seed gives the same numbers bit for bit on one core and on eight.
"""

import math
import os
from typing import NamedTuple

import jax

_MAX_PROGRAMS = 8
_MIN_SEEDS = 2  # per program; with a single seed, the time per seed is 25 % longer


class Layout(NamedTuple):
    """The division of seeds into programs, and the devices that run them.

    Attributes:
      seeds: number of seeds.
      width: seeds per program; copies of the last seed pad the last program.
      devices: one per concurrent program; on CPU, the same device once per core.
    """

    seeds: int
    width: int
    devices: tuple[jax.Device, ...]

    @property
    def programs(self) -> int:
        """Number of programs."""
        return math.ceil(self.seeds / self.width)

    def describe(self) -> str:
        """Return a description in one line."""
        kind = "core" if self.devices[0].platform == "cpu" else "device"
        count = min(len(self.devices), self.programs)
        return (
            f"{self.seeds} seeds as {self.programs} programs of {self.width}, over {count} "
            f"{kind}{'s' * (count > 1)}"
        )


def width_of(seeds: int) -> int:
    """Return the number of seeds per program on CPU, for 1, 2, 4 or 8 programs."""
    programs = 1
    while 2 * programs <= min(_MAX_PROGRAMS, seeds // _MIN_SEEDS):
        programs *= 2
    return math.ceil(seeds / programs)


def layout(seeds: int, count: int | None = None) -> Layout:
    """Return the layout of seeds on this machine.

    On CPU, `width_of` determines the number of programs. Each accelerator has one program with its
    share of the seeds (untested with several accelerators).

    Args:
      seeds: number of seeds.
      count: number of cores or accelerators; by default, all of this machine.

    Raises:
      ValueError: the machine has fewer accelerators.
    """
    devices = choose_devices(count)
    on_cpu = devices[0].platform == "cpu"
    width = width_of(seeds) if on_cpu else math.ceil(seeds / len(devices))
    return Layout(seeds, width, devices)


def choose_devices(count: int | None = None) -> tuple[jax.Device, ...]:
    """Return one device per concurrent program; arguments and errors as in `layout`."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        return tuple(devices[:1] * (count or _cores()))
    if count is not None and count > len(devices):
        raise ValueError(
            f"devices is {count}, but this machine has {len(devices)}: use {len(devices)} or fewer"
        )
    return tuple(devices[:count])


def describe() -> str:
    """Return a line about the device that JAX uses."""
    devices = choose_devices()
    first, count = devices[0], len(devices)
    if first.platform == "cpu":
        return f"device: CPU ({count} core{'s' * (count > 1)})"
    among = f", the first of {count}" if count > 1 else ""
    return f"device: {first.device_kind} ({first.platform.upper()}{among})"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
