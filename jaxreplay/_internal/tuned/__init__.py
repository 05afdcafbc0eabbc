"""Operations tuned to tested versions of XLA on CPU.

`buffer` uses them if `load` returns them, and plain JAX operations otherwise; results are the same.
To support a new JAX version, add it to `TESTED` and run the replay benchmarks and
`tests/contract/test_no_copies.py`.
"""

import functools
import os
import types
import warnings

import jax

TESTED = ((0, 10), (0, 11))  # JAX versions


@functools.cache
def load() -> types.SimpleNamespace | None:
    """Return the modules of this package, or None if they are disabled or the JAX version untested.

    `JAXREPLAY_TUNED=off` disables them without a warning.
    """
    if os.environ.get("JAXREPLAY_TUNED") == "off":
        return None
    if jax.__version_info__[:2] not in TESTED:
        warnings.warn(
            f"jaxreplay is not tuned to JAX {jax.__version__}: results are the same, but compiled "
            f"loops on CPU are much slower than with JAX {'.'.join(map(str, TESTED[-1]))}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    # Not at import: another version may lack what these modules need.
    from jaxreplay._internal.tuned import gather, keys, linear, once

    return types.SimpleNamespace(gather=gather, keys=keys, linear=linear, once=once)
