"""Agents as pure functions, one module per agent, independent of the replay method."""

from agents.types import Agent, Continuous, Discrete, Info

__all__ = ["Agent", "Continuous", "Discrete", "Info"]
