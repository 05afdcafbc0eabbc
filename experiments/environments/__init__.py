"""Environments, behind one interface for the compiled loop and one for the host's."""

from experiments.environments.host import EnvironmentFailed, HostEnvironment, HostStep
from experiments.environments.registry import (
    action_kind,
    check,
    is_host,
    make,
    make_host,
    missing,
    names,
    options,
    renderer,
    strangers,
)
from experiments.environments.types import Environment, EnvironmentSpec, TimeStep

__all__ = [
    "Environment", "EnvironmentFailed", "EnvironmentSpec", "HostEnvironment", "HostStep",
    "TimeStep", "action_kind", "check", "is_host", "make", "make_host", "missing", "names",
    "options", "renderer", "strangers",
]  # fmt: skip
