"""Environments, with one interface for those that compile and one for those on the host."""

from experiments.environments.families import (
    action_kind,
    check,
    foreign_options,
    has_goals,
    is_host,
    make,
    make_host,
    missing,
    module_to_import,
    names,
    options,
    renderer,
)
from experiments.environments.host import EnvironmentFailed, HostEnvironment
from experiments.environments.types import Environment, EnvironmentSpec, TimeStep

__all__ = [
    "Environment", "EnvironmentFailed", "EnvironmentSpec", "HostEnvironment",
    "TimeStep", "action_kind", "check", "foreign_options", "has_goals", "is_host", "make",
    "make_host", "missing", "module_to_import", "names", "options", "renderer",
]  # fmt: skip
