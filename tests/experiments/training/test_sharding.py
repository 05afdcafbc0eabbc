"""Runs on several devices: tests in processes with several devices, and in several processes."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.runs.assembly import assemble
from experiments.runs.run_config import defaults
from tests import xla
from tests.refusals import refused

HERE = Path(__file__).parent
MODULE = "tests.experiments.training.one_of_several"


def environ_with(count: int) -> dict[str, str]:
    """Return the environment of a process with some virtual devices."""
    flags = f"{xla.FLAGS} --xla_force_host_platform_device_count={count}"
    return os.environ | {"XLA_FLAGS": flags}


@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_on_four_virtual_devices(marks):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
    found = subprocess.run(
        [*command, str(HERE / "over_devices.py")],
        env=environ_with(4), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-4_000:]


def test_two_processes_give_the_numbers_of_two_devices_of_one_process():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    runs = [(2, address, 1, 0), (1, address, 2, 0), (1, address, 2, 1)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", MODULE, *map(str, run[1:])],
            cwd=HERE.parents[2],
            env=environ_with(run[0]),
            stdout=subprocess.PIPE,
            text=True,
        )
        for run in runs
    ]
    lines = [process.communicate(timeout=300)[0].splitlines()[-1] for process in processes]
    assert lines[1] == lines[0] and lines[2] == lines[0]
    assert len(json.loads(lines[0])["eval_return"]) == 2


def test_environments_on_the_host_are_refused():
    config = defaults("gymnasium/CartPole-v1", "dqn", "per")
    with refused("mesh", "2", "host"):
        assemble(dataclasses.replace(config, loop=dataclasses.replace(config.loop, mesh=2)))
