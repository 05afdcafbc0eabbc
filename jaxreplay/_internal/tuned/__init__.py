"""Operations that are written for one version of XLA on CPU, and faster there.

`buffer` uses them where `is_enabled` and plain JAX elsewhere; both give the same numbers. To try a
new version of JAX, add it to `TRIED` and run the benchmarks and `tests/contract/test_no_copies.py`.
"""

import functools
import os
import warnings

import jax

from jaxreplay._internal.tuned import gather, keys, linear, once

__all__ = ["TRIED", "gather", "is_enabled", "keys", "linear", "once"]
TRIED = ((0, 10),)  # versions of JAX


@functools.cache
def is_enabled() -> bool:
    """Return whether this version of JAX has been tried; `JAXREPLAY_TUNED=off` disables it, too."""
    if os.environ.get("JAXREPLAY_TUNED") == "off":
        return False
    if jax.__version_info__[:2] in TRIED:
        return True
    warnings.warn(
        f"jaxreplay is tuned to JAX {'.'.join(map(str, TRIED[-1]))} and runs plain operations with "
        f"{jax.__version__}: results are the same, loops may be slower on CPU",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
