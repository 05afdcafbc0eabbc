"""Schedules of hyperparameters over gradient steps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxreplay._internal.checks import Bounds
from jaxreplay._internal.promotion import as_by_default
from jaxreplay.types import Array


def linear(start: float, end: float, steps: int | Array | None) -> Callable[[Array], Array]:
    """Make a value that goes from `start` to `end` in so many steps, linearly, and stays there.

    It is `optax.linear_schedule`, bit for bit, except that a program may have the number of steps
    as an input, too.

    Args:
      start: value at step 0.
      end: value from step `steps` on.
      steps: a whole number from 0 on, or an array `[]` of an integer dtype; None, or 0: it stays
        at `start`.

    Raises:
      ValueError: `start` or `end` is no finite number; `steps` is something else, or negative (an
        input of a program, whose value is not known, is looked at for shape and dtype alone).
    """
    for name, value in {"start": start, "end": end}.items():
        Bounds().check(name, value)
    number = 0 if steps is None else _whole(steps)
    if not isinstance(number, int):
        moving = _line(start, end, number, jnp.maximum(number, 1))
        return lambda step: jnp.where(number == 0, start, moving(step))
    return _line(start, end, number, number) if number else _line(start, start, 1, 1)


def _line(
    start: float, end: float, steps: int | Array, divisor: int | Array
) -> Callable[[Array], Array]:
    @as_by_default
    def value(step: Array) -> Array:
        rest = 1 - jnp.clip(step, 0, steps) / divisor
        return (start - end) * rest + end

    return value


def _whole(steps: int | Array) -> int | Array:
    """Return the number of steps, checked: an int wherever its value is known."""
    if isinstance(steps, jax.Array | np.ndarray | np.generic):
        fits = jnp.issubdtype(steps.dtype, jnp.integer) and steps.ndim == 0
    else:
        fits = isinstance(steps, int) and not isinstance(steps, bool)
    if fits and isinstance(steps, Tracer):
        return steps
    if not fits or steps < 0:
        raise ValueError(f"a schedule of {steps!r} steps: give a whole number from 0 on, or None")
    return int(steps)
