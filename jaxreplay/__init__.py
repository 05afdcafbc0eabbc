"""Experience replay as pure functions: rings, sum trees, samplers and objectives for JAX."""

from jaxreplay import fields, frames, methods, n_step, objectives, ring, sum_tree
from jaxreplay.donation import donatable
from jaxreplay.replay import ReplayState, make_replay
from jaxreplay.requirements import Requirements
from jaxreplay.types import (
    Draw,
    Method,
    Objective,
    Replay,
    Sample,
    Sampler,
    Transition,
    Trust,
)

__all__ = [
    "Draw",
    "Method",
    "Objective",
    "Replay",
    "ReplayState",
    "Requirements",
    "Sample",
    "Sampler",
    "Transition",
    "Trust",
    "donatable",
    "fields",
    "frames",
    "make_replay",
    "methods",
    "n_step",
    "objectives",
    "ring",
    "sum_tree",
]
