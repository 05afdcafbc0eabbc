"""What JAX runs on, and whether it leaves a GPU of the machine unused."""

import importlib.util
import os
import re
from pathlib import Path
from typing import NamedTuple

import jax

from experiments.installation.commands import install_accelerator

_CUDA13_DRIVER = 580  # the first major version of NVIDIA's driver that runs CUDA 13
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


class NvidiaGPU(NamedTuple):
    """An NVIDIA GPU of this machine.

    Attributes:
      driver: the driver's major version; None: it does not say.
      reachable: whether processes here can open it; those of a container may not.
    """

    driver: int | None
    reachable: bool


def remarks() -> list[str]:
    """Return what a run says of its device when it starts, in lines."""
    asked = jax.config.jax_platforms or ""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    warning = None if hidden else unused(find_nvidia(), jax.default_backend(), asked)
    return [describe(jax.local_devices()), *([warning] if warning else [])]


def describe(devices: list[jax.Device]) -> str:
    """Say in one line what JAX runs on.

    Args:
      devices: those of its default platform.
    """
    first = devices[0]
    if first.platform == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return f"device: CPU ({cores} core{'' if cores == 1 else 's'})"
    among = f", the first of {len(devices)}" if len(devices) > 1 else ""
    return f"device: {first.device_kind} ({first.platform.upper()}{among})"


def find_nvidia(root: Path = Path("/")) -> NvidiaGPU | None:
    """Return the machine's NVIDIA GPU, as the driver's files show it; None: there is none.

    Args:
      root: of the file system.
    """
    nodes = list((root / "dev").glob("nvidia[0-9]*"))
    # Windows shows its GPUs to Linux (WSL) as one device, and lends it the driver's library.
    windows = (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists()
    version = root / "proc/driver/nvidia/version"
    said = re.search(r"\b(\d{3,})\.\d+", version.read_text()) if version.is_file() else None
    if not (nodes or windows or version.is_file()):
        return None
    return NvidiaGPU(int(said[1]) if said else None, bool(nodes or windows))


def unused(gpu: NvidiaGPU | None, platform: str, asked: str) -> str | None:
    """Say in one line that JAX leaves a GPU unused, with what mends it; None: it does not.

    Args:
      gpu: what `find_nvidia` found.
      platform: what JAX runs on.
      asked: what JAX_PLATFORMS asks for; "" if nothing.
    """
    if gpu is None or platform != "cpu" or "cpu" in asked.lower().split(","):
        return None
    what = "warning: this machine has an NVIDIA GPU, but jax runs on the CPU"
    if not gpu.reachable:
        return f"{what}, as no GPU is reachable from here: start the container with --gpus all"
    if any(importlib.util.find_spec(plugin) for plugin in _PLUGINS):
        return f"{what}, with its CUDA plugin installed: nvidia-smi shows whether the driver works"
    newer = gpu.driver is not None and gpu.driver >= _CUDA13_DRIVER
    return f"{what}: {install_accelerator('cuda13' if newer else 'cuda12')}"
