"""Experience replay as pure functions: rings, sum trees, samplers and objectives for JAX."""

from jaxreplay import (
    fields,
    frames,
    host_rows,
    keys,
    methods,
    n_step,
    objectives,
    packed,
    ring,
    sum_tree,
)
from jaxreplay._internal.version import VERSION
from jaxreplay.donation import donatable
from jaxreplay.replay import ReplayState, make_replay
from jaxreplay.requirements import Requirements
from jaxreplay.saving import load, save
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

__version__ = VERSION

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
    "__version__",
    "donatable",
    "fields",
    "frames",
    "host_rows",
    "keys",
    "load",
    "make_replay",
    "methods",
    "n_step",
    "objectives",
    "packed",
    "ring",
    "save",
    "sum_tree",
]
