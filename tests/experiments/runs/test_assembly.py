"""Memory limits of device and host, checked before a run is traced."""

import dataclasses

import jax
import pytest

from experiments.runs import assembly
from experiments.runs.run_config import defaults
from tests.refusals import refused


def config(replay_on, seeds=2):
    run = defaults("gymnax/Pendulum-v1", "td3", "per")
    sizes = dataclasses.replace(run.sizes, capacity=100_000, replay_on=replay_on)
    return dataclasses.replace(run, seeds=seeds, sizes=sizes)


def sizes(replay_on):
    run = config(replay_on)
    return assembly._sizes(assembly.assemble(run), run)


def test_host_rows_count_as_host_memory():
    (whole, nothing), (part, host) = sizes("device"), sizes("host")
    assert nothing == 0
    assert host == 100_000 * 4 * 6  # two observations of 3 numbers
    assert whole - part == host - 4 * 7  # buffer of the newest row and its slot


@pytest.mark.parametrize(
    ("backend", "device", "machine", "memory"),
    [
        ("gpu", 3e6, 1e12, "device"),
        ("gpu", 1e12, 3e6, "host"),
        ("cpu", 9e6, 9e6, "device"),  # device and host share one memory
    ],
)
def test_runs_beyond_the_memory_are_refused(backend, device, machine, memory, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(assembly, "device_bytes", lambda: device)
    monkeypatch.setattr(assembly, "machine_bytes", lambda: machine)
    with refused(memory, "capacity", "seeds"):
        assembly.build(config("host"))


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        ("gymnax/Pendulum-v1", "inspect", 10**9),
        ("gymnax/Pendulum-v1", "inspect", 2**31 - 1),
        ("gymnax/Pendulum-v1", "eval_episodes", 10**9),
        ("gymnasium/Pendulum-v1", "eval_episodes", 10**9),
        ("gymnax/Pendulum-v1", "updates", 2**31 - 1),
        ("gymnax/Pendulum-v1", "updates", 10**8),
        ("gymnax/Pendulum-v1", "learn_every", 2**31 - 1),
    ],
)
def test_options_beyond_memory_or_counters_are_named(env, name, value):
    run = defaults(env, "td3", "per")
    run = dataclasses.replace(run, loop=dataclasses.replace(run.loop, **{name: value}))
    with refused(value) as error:
        assembly.build(run)
    assert name in str(error.value).replace("-", "_")
