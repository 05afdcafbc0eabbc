"""Hyperparameter schedules over gradient steps."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import traced
from jaxreplay._internal.arguments import Bounds
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.types import Array

Schedule = Callable[[Array], Array]  # maps the number of gradient steps to a value


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear schedule; call `linear` instead, which validates the arguments."""

    start: float
    end: float
    steps: int | Array

    @with_default_promotion
    def __call__(self, step: Array) -> Array:
        """Return the value `[]` of the schedule at gradient step `step` `[]`."""
        if not isinstance(self.steps, int):
            return traced.linear(self.start, self.end, self.steps, step)
        end, steps = (self.end, self.steps) if self.steps else (self.start, 1)
        rest = 1 - jnp.clip(step, 0, steps) / steps
        return (self.start - end) * rest + end


def linear(start: float, end: float, steps: int | Array | None) -> Linear:
    """Return a schedule from `start` to `end` that is linear over `steps` and constant afterwards.

    The values equal those of `optax.linear_schedule` bit for bit. Unlike in Optax, schedules with
    the same arguments compare equal, and `steps` may be an input of the compiled program.

    Args:
      start: value at step 0.
      end: value at step `steps` and afterwards.
      steps: non-negative integer or integer array `[]`; None and 0 yield a constant `start`.

    Raises:
      ValueError: If `start` or `end` is not finite, or `steps` is not a valid number of steps.

    Example:
      >>> beta = linear(0.4, 1.0, 100_000)
      >>> round(float(beta(50_000)), 3)
      0.7
    """
    for name, value in {"start": start, "end": end}.items():
        Bounds().check(name, value)
    return Linear(start, end, 0 if steps is None else _whole(steps))


def _whole(steps: int | Array) -> int | Array:
    """Validate a number of steps, and convert it to an int unless it is traced."""
    if isinstance(steps, jax.Array | np.ndarray | np.generic):
        fits = jnp.issubdtype(steps.dtype, jnp.integer) and steps.ndim == 0
    else:
        fits = isinstance(steps, int) and not isinstance(steps, bool)
    if fits and traced.is_traced(steps):
        return steps
    if not fits or steps < 0:
        raise ValueError(f"steps must be a non-negative integer or None, got {steps!r}")
    return int(steps)
