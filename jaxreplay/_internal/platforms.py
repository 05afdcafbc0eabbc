"""Computations that differ by the platform for which XLA compiles.

A function is traced before its platform is known: `jax.default_backend()` is wrong for a program
that is compiled for another device. `jax.lax.platform_dependent` traces all alternatives, and only
one of them becomes part of the compiled program.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

Function = TypeVar("Function", bound=Callable[..., Any])


def by_platform(default: Callable[..., Any], **platforms: Function) -> Function:
    """Return a function that calls the alternative for the platform for which XLA compiles.

    All functions must return arrays of the same shapes and dtypes.

    Args:
      default: function for platforms that are not named.
      **platforms: functions by platform, such as `cpu` or `tpu`.
    """

    def choose(*args: Any) -> Any:
        return jax.lax.platform_dependent(*args, default=default, **platforms)

    # Use jit, because tracing all alternatives at every call would take long.
    return cast(Function, jax.jit(choose, inline=True))
