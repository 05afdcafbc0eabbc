"""The device that JAX uses, and a warning about an unused GPU."""

import importlib.util
import os
import re
from pathlib import Path
from typing import NamedTuple

import jax

from experiments.installation.commands import install_accelerator

_CUDA13_DRIVER = 580  # first major version of NVIDIA's driver with CUDA 13
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


class NvidiaGPU(NamedTuple):
    """An NVIDIA GPU of this machine.

    Attributes:
      driver: major version of the driver, or None if unknown.
      reachable: whether processes can open the GPU; those of a container may not.
    """

    driver: int | None
    reachable: bool


def remarks() -> list[str]:
    """Return the lines about the device that a run prints when it starts."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    gpu = None if hidden else find_nvidia()
    warning = unused(gpu, jax.default_backend(), jax.config.jax_platforms or "")
    return [describe(jax.local_devices()), *([warning] if warning else [])]


def describe(devices: list[jax.Device]) -> str:
    """Return a line about the devices of JAX's default platform."""
    first = devices[0]
    if first.platform == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return f"device: CPU ({cores} core{'' if cores == 1 else 's'})"
    among = f", the first of {len(devices)}" if len(devices) > 1 else ""
    return f"device: {first.device_kind} ({first.platform.upper()}{among})"


def find_nvidia(root: Path = Path("/")) -> NvidiaGPU | None:
    """Return the NVIDIA GPU that the driver's files below `root` describe, or None."""
    version = root / "proc/driver/nvidia/version"
    # Windows passes its GPUs to Linux (WSL) as one device, and the driver's library.
    windows = (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists()
    reachable = windows or any((root / "dev").glob("nvidia[0-9]*"))
    if not reachable and not version.is_file():
        return None
    found = re.search(r"\b(\d{3,})\.\d+", version.read_text()) if version.is_file() else None
    return NvidiaGPU(int(found[1]) if found else None, reachable)


def unused(gpu: NvidiaGPU | None, platform: str, asked: str) -> str | None:
    """Return a warning if JAX does not use a GPU, with a remedy, or None.

    Args:
      gpu: result of `find_nvidia`.
      platform: JAX's default backend.
      asked: value of JAX_PLATFORMS.
    """
    if gpu is None or platform != "cpu" or "cpu" in asked.lower().split(","):
        return None
    warning = "warning: JAX runs on the CPU although this machine has an NVIDIA GPU"
    if not gpu.reachable:
        return f"{warning}, which this container cannot reach: start it with --gpus all"
    if any(importlib.util.find_spec(plugin) for plugin in _PLUGINS):
        return f"{warning} and JAX's CUDA plugin: nvidia-smi shows whether the driver works"
    newer = gpu.driver is not None and gpu.driver >= _CUDA13_DRIVER
    return f"{warning}: {install_accelerator('cuda13' if newer else 'cuda12')}"
