"""Agents as pure functions, one module each; they know no replay method by name."""

from agents.types import Agent, Continuous, Discrete, Info

__all__ = ["Agent", "Continuous", "Discrete", "Info"]
