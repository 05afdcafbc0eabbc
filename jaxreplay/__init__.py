"""Experience replay in JAX: ring buffers, sum trees, samplers and objectives as pure functions.

`__all__` lists the public modules and the most frequently used names.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxreplay import (
    batches,
    buffer,
    contrib,
    counters,
    devices,
    equivalence,
    loops,
    methods,
    mixing,
    n_step,
    numerics,
    objectives,
    option,
    replay,
    returns,
    ring,
    sampler,
    saving,
    schedules,
    storage,
    sum_tree,
    traced,
    types,
)
from jaxreplay._internal.packages import VERSION
from jaxreplay._internal.tracing import donatable
from jaxreplay.objectives import Objective
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.sampler import Method, Sampler
from jaxreplay.saving import load, load_rows, save
from jaxreplay.schedules import linear
from jaxreplay.storage import Frames, SharedObservations, Transitions
from jaxreplay.types import IGNORED, Draw, Requirements, Sample, Transition, Trust

if TYPE_CHECKING:
    from jaxreplay import datasets, microscope, testing

__version__ = VERSION

__all__ = [
    "IGNORED",
    "Draw",
    "Frames",
    "Method",
    "Objective",
    "Replay",
    "ReplayState",
    "Requirements",
    "Sample",
    "Sampler",
    "SharedObservations",
    "Transition",
    "Transitions",
    "Trust",
    "__version__",
    "batches",
    "buffer",
    "contrib",
    "counters",
    "datasets",
    "devices",
    "donatable",
    "equivalence",
    "linear",
    "load",
    "load_rows",
    "loops",
    "methods",
    "microscope",
    "mixing",
    "n_step",
    "numerics",
    "objectives",
    "option",
    "replay",
    "returns",
    "ring",
    "sampler",
    "save",
    "saving",
    "schedules",
    "storage",
    "sum_tree",
    "testing",
    "traced",
    "types",
]  # fmt: skip
_LATE = ("datasets", "microscope", "testing")  # rarely used modules, imported on first use


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
