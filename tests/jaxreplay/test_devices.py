"""Replays on several devices: tests of `over_devices.py`, in a process with eight of them."""

import os
import subprocess
import sys
from pathlib import Path

from tests import xla


def test_on_eight_virtual_devices():
    flags = f"{xla.FLAGS} --xla_force_host_platform_device_count=8"
    file = Path(__file__).parent / "over_devices.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    found = subprocess.run(
        command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout[-4_000:]
