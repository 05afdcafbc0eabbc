"""The device that JAX uses, and unused GPUs, which the driver's files reveal."""

import jax
import pytest

from experiments.installation.accelerator import NvidiaGPU, describe, find_nvidia, remarks, unused
from experiments.installation.commands import install_accelerator
from tests.refusals import assert_names


def files(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


VERSION = "proc/driver/nvidia/version"


@pytest.mark.parametrize(
    ("names", "version", "expected"),
    [
        (("dev/null", "dev/nvidiactl", "dev/dxg"), None, None),
        (("dev/nvidia0",), None, NvidiaGPU(None, reachable=True)),
        (("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"), None, NvidiaGPU(None, reachable=True)),
        # The first lines that drivers of three kinds write.
        (("dev/nvidia0", "dev/nvidia1"), "NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19",
         NvidiaGPU(535, reachable=True)),
        (("dev/nvidia0",), "NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
         NvidiaGPU(580, reachable=True)),
        (("dev/nvidia0",), "of another kind", NvidiaGPU(None, reachable=True)),
    ],
)  # fmt: skip
def test_a_gpu_and_its_driver_are_found(names, version, expected, tmp_path):
    files(tmp_path, *names, *[VERSION] * (version is not None))
    if version is not None:
        (tmp_path / VERSION).write_text(f"NVRM version: {version}\nGCC version:  gcc 11.4.0\n")
    assert find_nvidia(tmp_path) == expected


def test_a_container_that_was_not_given_the_gpu_cannot_reach_it(tmp_path):
    found = find_nvidia(files(tmp_path, VERSION, "dev/null"))
    assert found == NvidiaGPU(None, reachable=False)
    assert_names(unused(found, "cpu", ""), "--gpus all")


@pytest.mark.parametrize(("driver", "extra"), [(None, "cuda12"), (535, "cuda12"), (580, "cuda13")])
def test_an_unused_gpu_is_named_with_the_command_that_its_driver_can_run(driver, extra):
    said = unused(NvidiaGPU(driver, reachable=True), "cpu", "")
    assert said.startswith("warning: ") and "\n" not in said
    assert_names(said, "NVIDIA", "CPU", install_accelerator(extra))


@pytest.mark.parametrize(
    ("gpu", "platform", "asked"),
    [
        (None, "cpu", ""),
        (NvidiaGPU(580, reachable=True), "gpu", ""),
        (NvidiaGPU(580, reachable=True), "cpu", "cpu"),
        (NvidiaGPU(580, reachable=True), "cpu", "tpu,CPU"),
    ],
)
def test_there_is_no_warning_without_an_unused_gpu(gpu, platform, asked):
    assert unused(gpu, platform, asked) is None


def test_the_device_has_one_line():
    first, *more = remarks()
    assert first == describe(jax.local_devices()) and first.startswith("device: ")
    assert all(line.startswith("warning: ") for line in more)
    if jax.default_backend() == "cpu":
        assert_names(first, "CPU")
