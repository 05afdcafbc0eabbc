"""Replays on several devices: tests of `over_devices.py`, in a process with eight of them."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from jaxreplay import Replay, devices, methods, testing
from jaxreplay.methods import uniform
from tests import xla
from tests.refusals import refused


@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_on_eight_virtual_devices(marks):
    flags = f"{xla.FLAGS} --xla_force_host_platform_device_count=8"
    file = Path(__file__).parent / "over_devices.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
    found = subprocess.run(
        [*command, str(file)],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-4_000:]


DIVIDED = {
    "uniform", "per", "lap", "pal", "pser", "eper", "relo", "laber", "discor", "geometric", "uper",
}  # fmt: skip


@pytest.mark.parametrize("name", methods.METHODS)
def test_other_methods_are_refused_with_a_reason(name):
    """LaBER and DisCor draw uniformly; agents refuse their objectives."""
    sampler = testing.with_goals(methods.METHODS[name].method()).sampler
    if name in DIVIDED:
        Replay(sampler, capacity=64, batch_size=32, axis_name="d")
        return
    assert sampler.needs_whole
    with refused("axis_name", type(sampler).__name__):
        Replay(sampler, capacity=64, batch_size=32, axis_name="d")


@pytest.mark.parametrize("axis_name", ["", 3, ("d",)])
def test_names_of_axes_are_checked(axis_name):
    with refused("axis_name"):
        Replay(uniform.sampler(), capacity=8, batch_size=2, axis_name=axis_name)


def test_nothing_is_reduced_without_an_axis():
    value = jnp.arange(3.0)
    for reduce in (devices.mean, devices.total, devices.largest, devices.gathered, devices.times):
        assert reduce(value, None) is value
    assert devices.share(value, None) is value
    assert devices.count(None) == 1 and devices.current() is None
