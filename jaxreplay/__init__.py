"""Experience replay as pure functions: rings, sum trees, samplers and objectives for JAX.

`__all__` has every public module, and what most programs call by the name of the library.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxreplay import (
    array_file,
    branches,
    bucket_order,
    clocks,
    donation,
    fields,
    frames,
    host_rows,
    keys,
    methods,
    n_step,
    objectives,
    optimisers,
    option,
    packed,
    replay,
    requirements,
    returns,
    ring,
    sampler,
    saving,
    schedules,
    storage,
    sum_tree,
    types,
    untrusted,
)
from jaxreplay._internal.version import VERSION
from jaxreplay.donation import donatable
from jaxreplay.objectives import Objective
from jaxreplay.replay import Replay, ReplayState
from jaxreplay.requirements import Requirements
from jaxreplay.sampler import Method, Sampler
from jaxreplay.saving import load, load_rows, save
from jaxreplay.schedules import linear
from jaxreplay.storage import Frames, SharedObservations, Transitions
from jaxreplay.types import IGNORED, Draw, Sample, Transition, Trust

if TYPE_CHECKING:
    from jaxreplay import datasets, testing

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
    "array_file",
    "branches",
    "bucket_order",
    "clocks",
    "datasets",
    "donatable",
    "donation",
    "fields",
    "frames",
    "host_rows",
    "keys",
    "linear",
    "load",
    "load_rows",
    "methods",
    "n_step",
    "objectives",
    "optimisers",
    "option",
    "packed",
    "replay",
    "requirements",
    "returns",
    "ring",
    "sampler",
    "save",
    "saving",
    "schedules",
    "storage",
    "sum_tree",
    "testing",
    "types",
    "untrusted",
]
_LATE = ("datasets", "testing")  # modules that few programs need: imported where they are named


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
