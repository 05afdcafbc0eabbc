"""Every benchmark can be told what to run on, and refuses what is not there."""

import jax
import pytest

from experiments.benchmarks import (
    compiling,
    devices,
    frames,
    host,
    methods,
    refer,
    replay,
    rows,
    timing,
    training,
)
from tests.refusals import assert_names

COMMANDS = [compiling, frames, host, methods, refer, replay, rows, training]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda module: module.__name__.split(".")[-1])
def test_a_device_that_is_not_there_is_refused_in_one_line(command, capsys):
    if jax.default_backend() != "cpu":
        pytest.skip("there is another device")
    before = jax.config.jax_platforms
    with pytest.raises(SystemExit) as stop:
        command.main(["--device", "tpu"])
    printed = capsys.readouterr().err
    assert stop.value.code == 2 and printed.count("\n") == 1
    assert_names(printed, "device", "tpu", "CPU")
    assert jax.config.jax_platforms == before


@pytest.mark.parametrize("command", COMMANDS, ids=lambda module: module.__name__.split(".")[-1])
def test_help_names_devices(command, capsys):
    with pytest.raises(SystemExit):
        command.main(["--device", "none", "--help", "all"])
    assert "--device {cpu,gpu,tpu}|none" in capsys.readouterr().out


def test_an_unknown_device_is_refused(capsys):
    for command in (methods, training):
        with pytest.raises(SystemExit):
            command.main(["--device", "gpus"])
        assert_names(capsys.readouterr().err, "--device", "gpus", "gpu")


def test_what_is_there_is_used_and_recorded():
    devices.use(None)
    devices.use(jax.default_backend())
    machine = timing.machine()
    assert machine["platform"] == jax.default_backend()
    assert machine["device"] == jax.devices()[0].device_kind and machine["devices"] >= 1
