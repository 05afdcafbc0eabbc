"""Environments for the compiled loop, all behind one interface."""

from experiments.environments.registry import action_kind, make, names
from experiments.environments.types import Environment, TimeStep

__all__ = ["Environment", "TimeStep", "action_kind", "make", "names"]
