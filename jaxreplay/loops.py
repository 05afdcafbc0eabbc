"""Functions for training loops around a replay.

* `unrolled(key)`: a PRNG key with the same random numbers, hashed faster inside compiled loops.
* `product(x, kernel)`: a matrix product that is faster on CPU for small dimensions.
* `cond_if_any(due, change, tree)`: a branch that few of many vmapped programs take.
* `if_finite(optimiser)`: an optimiser that skips gradients which are not finite.
* `counters`: step counters of 32 bits for runs of any length.
* `schedules`: values that change linearly over a run.
* `packed`: pytrees as few arrays, for calls from Python.
* `host_rows` and `frames`: the parts of a replay that the caller keeps in the host's memory.
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
