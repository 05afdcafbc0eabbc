"""Utilities for training loops with a replay.

* `unrolled(key)` returns a PRNG key that yields the same numbers, but faster in compiled loops.
* `product(x, kernel)` computes a matrix product that is faster on CPU for small dimensions.
* `cond_if_any(due, change, tree)` is a conditional for updates that few elements of a batch need.
* `if_finite(optimiser)` wraps an optimiser to skip updates with NaN or infinite gradients.
* `counters` provides 32-bit step counters for runs of any length.
* `schedules` provides values that change linearly during a run.
* `packed` packs pytrees into a few arrays to speed up calls from Python.
* `host_rows` and `frames` manage the parts of a replay that the caller stores in host memory.
"""

from jaxreplay._internal import counters, frames, host_rows, packed, schedules
from jaxreplay._internal.branches import cond_if_any
from jaxreplay._internal.buffer import product, unrolled
from jaxreplay._internal.optimisers import IfFiniteState, if_finite
from jaxreplay._internal.tracing import donatable

__all__ = [
    "IfFiniteState",
    "cond_if_any",
    "counters",
    "donatable",
    "frames",
    "host_rows",
    "if_finite",
    "packed",
    "product",
    "schedules",
    "unrolled",
]
