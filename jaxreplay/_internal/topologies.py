"""Compilation for an H100 GPU or a TPU v5e, on machines that have neither."""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

PLATFORMS = ("gpu", "tpu")

# The GPU description that XLA requires, with NVIDIA's figures for the H100 SXM.
_H100 = """gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3" """
_GPU_PLUGINS = ("xla_cuda13", "xla_cuda12")
# Without a device there is nothing to autotune on.
_OPTIONS = {"gpu": {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}}
# libtpu would search for the machine's TPU, log that there is none, and lock it for one process.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3", "TPU_MIN_LOG_LEVEL": "3",
}  # fmt: skip


def check(platform: str | None) -> None:
    """Raise ValueError for an unknown platform, and ImportError if its compiler is missing."""
    if platform is None:
        return
    if platform not in PLATFORMS:
        raise ValueError(f"platform must be None, 'gpu' or 'tpu', got {platform!r}")
    there = _gpu_plugin() if platform == "gpu" else importlib.util.find_spec("libtpu")
    if not there:
        raise ImportError(
            f"platform '{platform}' needs its compiler: in a clone of jaxreplay, "
            f"pip install '.[compile-{platform}]'"
        )


def compiled(
    function: Callable[..., Any], *shapes: Any, platform: str | None, donate: int | tuple[int, ...]
) -> jax.stages.Compiled:
    """Compile a function for one device of a platform, or for the default device (None).

    Args:
      function: function to compile.
      *shapes: pytrees of the shapes and dtypes of the function's arguments.
      platform: "gpu" (H100) or "tpu" (v5e), whether the machine has one or not; None compiles for
        the default device.
      donate: positions of donated arguments.
    """
    if platform is not None:
        place = SingleDeviceSharding(devices(platform)[0])
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=place, weak_type=getattr(x, "weak_type", False)
            ),
            shapes,
        )
    lowered = jax.jit(function, donate_argnums=donate).lower(*shapes)
    with contextlib.nullcontext() if platform is None else _not_cached():
        return lowered.compile(_OPTIONS.get(platform or ""))


@contextlib.contextmanager
def _not_cached() -> Iterator[None]:
    """Keep compiled programs that this machine cannot load out of JAX's persistent cache."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 1e9)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _gpu_plugin() -> str | None:
    """Return the module name of JAX's plugin for CUDA, or None if the plugin is not installed."""
    if importlib.util.find_spec("jax_plugins") is None:
        return None
    names = [f"jax_plugins.{name}" for name in _GPU_PLUGINS]
    return next((name for name in names if importlib.util.find_spec(name)), None)


@functools.cache
def devices(platform: str) -> Any:
    """Return one GPU or four TPUs, for which programs can be compiled but not run."""
    jax.devices()  # the machine's own devices first, which JAX chooses among the plugins it knows
    if platform == "tpu":
        with _environment(_NO_TPU):
            return topologies.get_topology_desc("v5e:2x2", "tpu").devices
    describe = functools.partial(
        topologies.get_topology_desc, platform="cuda", target_config=_H100, topology="1x1x1"
    )
    try:
        return describe().devices
    except NotImplementedError:  # JAX left out the plugin, as its libraries for running are missing
        plugin = importlib.import_module(_gpu_plugin() or "")
        with _environment({"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}):
            plugin.initialize()
        return describe().devices


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set those environment `variables` that are unset, for the duration of a `with` statement."""
    with mock.patch.dict(os.environ, {**variables, **os.environ}):
        yield
