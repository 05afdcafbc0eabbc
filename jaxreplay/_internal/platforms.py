"""Computations that differ by the platform for which XLA compiles.

A function is traced before its platform is known: `jax.default_backend()` is wrong for a program
that is compiled for another device. `jax.lax.platform_dependent` traces all alternatives, and only
one of them becomes part of the compiled program.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

Args = ParamSpec("Args")
Result = TypeVar("Result")


def cpu_only(
    elsewhere: Callable[..., Any],
) -> Callable[[Callable[Args, Result]], Callable[Args, Result]]:
    """Decorate a function of arrays that is compiled for CPUs; other platforms use `elsewhere`.

    Both functions must return arrays of the same shapes and dtypes.
    """

    def decorate(function: Callable[Args, Result]) -> Callable[Args, Result]:
        # Use jit, because tracing both alternatives at every call would take long.
        @functools.partial(jax.jit, inline=True)
        @functools.wraps(function)
        def choose(*args: Any) -> Any:
            return jax.lax.platform_dependent(*args, cpu=function, default=elsewhere)

        return choose

    return decorate
