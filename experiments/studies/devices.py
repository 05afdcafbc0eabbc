"""The devices of a sweep and their memory."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import jax

from experiments.runs.assembly import device_bytes

_SHARE = 0.8  # of the free memory; the rest is for temporary arrays of programs


class Slot(NamedTuple):
    """A core or an accelerator of a cluster's node."""

    platform: str
    kind: str  # kind of device, as reported by JAX
    node: str  # name of the node
    bytes: int  # memory that runs may take on it


Device = jax.Device | Slot


def cores() -> int:
    """Return the number of XLA's threads on this machine's CPU with a single CPU device.

    It determines how XLA splits large matrix products, which affects the last digits of numbers.
    """
    told = os.environ.get("NPROC", "")  # a variable that XLA reads
    return int(told) if told.isdecimal() else len(os.sched_getaffinity(0))


def free_bytes(devices: Sequence[Device]) -> int:
    """Return the bytes that runs may take on all devices together."""
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
