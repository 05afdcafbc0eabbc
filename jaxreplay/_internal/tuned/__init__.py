"""Operations tuned for a particular version of XLA on CPU.

`buffer` uses these operations if they are enabled, and otherwise plain JAX with the same results.
To test another version of JAX, add the version to `TRIED`, and run the benchmarks and
`tests/contract/test_no_copies.py`.
"""

import functools
import os
import warnings

import jax

from jaxreplay._internal.tuned import gather, keys, linear, once

__all__ = ["TRIED", "gather", "is_enabled", "keys", "linear", "once"]
TRIED = ((0, 10),)  # tested versions of JAX


@functools.cache
def is_enabled() -> bool:
    """Return whether this version of JAX is tested and `JAXREPLAY_TUNED` is not "off"."""
    if os.environ.get("JAXREPLAY_TUNED") == "off":
        return False
    if jax.__version_info__[:2] in TRIED:
        return True
    warnings.warn(
        f"jaxreplay is tuned for JAX {'.'.join(map(str, TRIED[-1]))} and runs plain operations "
        f"with {jax.__version__}: results are the same, but loops may be slower on CPU",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
