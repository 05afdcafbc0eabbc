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
    saving,
    schedules,
    sum_tree,
    types,
    untrusted,
    verbs,
)
from jaxreplay._internal.version import VERSION
from jaxreplay.donation import donatable
from jaxreplay.replay import ReplayState, make_replay
from jaxreplay.requirements import Requirements
from jaxreplay.saving import load, load_rows, save
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

if TYPE_CHECKING:
    from jaxreplay import datasets, testing

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
    "load",
    "load_rows",
    "make_replay",
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
    "save",
    "saving",
    "schedules",
    "sum_tree",
    "testing",
    "types",
    "untrusted",
    "verbs",
]
_LATE = ("datasets", "testing")  # modules that few programs need: imported where they are named


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
