"""Traced options: options that are inputs of a compiled program, such as the settings of a sweep.

The options of a method are usually Python numbers, which a compiled program contains as constants.
A program for many settings receives the options as arrays instead, one element for each setting:

    def priorities(alpha):
        replay = Replay(per.sampler(PERConfig(alpha=alpha)), capacity=1000, batch_size=32)
        ...

    jax.vmap(priorities)(jnp.array([0.4, 0.6, 0.8]))

While JAX traces such a program, an option has no value. Configs and samplers with traced options
are not validated and can't be hashed, and no Python condition may depend on the option. All code
for traced options is in this module, which readers can skip: with Python numbers, `is_traced` is
False, `is_zero` is `== 0`, and `cached` is `functools.lru_cache`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer

Args = ParamSpec("Args")
Result = TypeVar("Result")


def is_traced(option: Any) -> bool:
    """Return whether an option, or any in a tuple or a dataclass of options, is traced."""
    if dataclasses.is_dataclass(option):
        return any(is_traced(getattr(option, x.name)) for x in dataclasses.fields(option))
    if isinstance(option, tuple):
        return any(map(is_traced, option))
    return isinstance(option, Tracer)


def is_zero(option: Any) -> bool:
    """Return whether an option is 0; False for arrays, because other settings may not be 0."""
    return not isinstance(option, jax.Array) and option == 0


def cached(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Cache the results of a function, except for arguments with traced options."""
    lookup: Any = functools.lru_cache(maxsize=512)(function)

    @functools.wraps(lookup)
    def call(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        try:
            return lookup(*args, **kwargs)
        except TypeError:  # traced options can't be hashed
            if is_traced(args):
                return function(*args, **kwargs)
            raise

    return call


def linear(start: Any, end: Any, steps: Any, step: jax.Array) -> jax.Array:
    """Return the value `[]` of `schedules.linear(start, end, steps)` at `step` for traced `steps`.

    Args:
      start: value at step 0.
      end: value at step `steps`.
      steps: `[]` integer, which may be 0.
      step: `[]` int32.
    """
    divisor = jnp.maximum(steps, 1)
    rest = 1 - jnp.clip(step, 0, steps) / divisor
    moving = (start - end) * rest + end
    return jnp.where(steps == 0, start, moving)
