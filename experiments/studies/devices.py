"""The devices that a sweep's runs are laid over, and their memory."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import jax

from experiments.runs.assembly import device_bytes

_SHARE = 0.8  # of what is free: programs need room for what they compute with


class Slot(NamedTuple):
    """A core or an accelerator of a cluster's node."""

    platform: str
    kind: str  # of device, as JAX has it
    node: str  # its name
    bytes: int  # that runs may take on it


Device = jax.Device | Slot


def cores() -> int:
    """Return how many threads XLA has on this machine's CPU, if it has no more devices.

    How it cuts large matrix products between them decides last digits.
    """
    told = os.environ.get("NPROC", "")  # which XLA reads
    return int(told) if told.isdecimal() else len(os.sched_getaffinity(0))


def free_bytes(devices: Sequence[Device]) -> int:
    """Return the bytes that runs may take, over all these devices."""
    slots = [device for device in devices if isinstance(device, Slot)]
    if slots:
        return min(slot.bytes for slot in slots) * len(slots)
    if devices[0].platform != "cpu":
        return int(_SHARE * device_bytes() * len(devices))
    return int(_SHARE * _free_memory())


def is_cpu(devices: Sequence[Device]) -> bool:
    """Tell whether these are cores."""
    return devices[0].platform == "cpu"


def _free_memory() -> int:
    """Return the memory of the machine that is free, or if it does not say, all of it."""
    try:
        with open("/proc/meminfo") as file:
            sizes = dict(line.split(":") for line in file)
        return int(sizes["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return device_bytes()
