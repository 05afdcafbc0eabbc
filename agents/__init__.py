"""Agents as pure functions, one module each. They work with every replay method that they fit."""

from agents.types import Agent, Continuous, Discrete, Info

__all__ = ["Agent", "Continuous", "Discrete", "Info"]
