"""Schedules of hyperparameters over gradient steps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay.types import Array


def linear(start: float, end: float, steps: int | None) -> Callable[[Array], Array]:
    """Make a value that goes from `start` to `end` in so many steps, linearly, and stays there.

    It is `optax.linear_schedule`, bit for bit, except that a program may have the number of steps
    as an input, too.

    Args:
      start: value at step 0.
      end: value from step `steps` on.
      steps: None, or 0: it stays at `start`.

    Raises:
      ValueError: `steps` is something else, or negative.
    """
    number = isinstance(steps, int | np.integer) and not isinstance(steps, bool)
    if not (steps is None or isinstance(steps, jax.Array) or (number and steps >= 0)):
        raise ValueError(f"a schedule of {steps!r} steps: give a whole number from 0 on, or None")
    if steps is None or (number and steps == 0):
        end, steps = start, 1

    def value(step: Array) -> Array:
        rest = 1 - jnp.clip(step, 0, steps) / steps
        return (start - end) * rest + end

    return value
