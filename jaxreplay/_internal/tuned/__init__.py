"""Operations tuned to tested versions of XLA on CPU.

The module `buffer` uses these operations if `load` returns them, and plain JAX operations with the
same results otherwise.
To support a new JAX version, add it to `TESTED` and run the replay benchmarks and
`tests/contract/test_no_copies.py`.
"""

import functools
import os
import types
import warnings

import jax

TESTED = ((0, 10), (0, 11))  # tested JAX versions


@functools.cache
def load() -> types.SimpleNamespace | None:
    """Return the modules of this package, or None if disabled or not tested with this JAX version.

    The environment variable `JAXREPLAY_TUNED=off` disables the modules without a warning.
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
    # Import these modules only here: other JAX versions may lack what the modules use.
    from jaxreplay._internal.tuned import gather, keys, linear, once

    return types.SimpleNamespace(gather=gather, keys=keys, linear=linear, once=once)
