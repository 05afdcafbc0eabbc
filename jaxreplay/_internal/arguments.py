"""Validation of numbers and arrays. All errors are one-line ValueErrors; NaN is never accepted.

Arrays are checked during tracing, because XLA silently broadcasts and converts them: TD errors of
shape `[B, 1]`, for example, would write the last TD error to every slot.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay.traced import is_traced

_LARGEST = float(np.finfo(np.float32).max)


class Bounds(NamedTuple):
    """An interval of numbers; a bound of None does not limit the interval."""

    at_least: float | None = None  # inclusive lower bound
    above: float | None = None  # exclusive lower bound
    at_most: float | None = None  # inclusive upper bound
    below: float | None = None  # exclusive upper bound
    finite: bool = True  # whether infinity is excluded

    def check(self, name: str, value: Any, alternative: str = "", kind: type | None = None) -> None:
        """Raise ValueError unless a number of type `kind` is within the bounds.

        Without `kind`, scalar arrays are also valid. The value of a traced array is not checked.
        `alternative` names other valid values in the message, such as ", or none".
        """
        if kind is None and isinstance(value, jax.Array | np.ndarray):
            if value.ndim:
                raise ValueError(f"{name} must be a scalar, got shape {list(value.shape)}")
            if is_traced(value):
                return
            value = value.item()
        check_kind(name, value, kind or float, alternative)
        if not abs(value) <= (_LARGEST if self.finite else math.inf):  # also of NaN
            number = "finite" if self.finite else "a number"
            raise ValueError(f"{name} must be {number}{alternative}, got {value}")
        inside = (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )
        if not inside:
            raise ValueError(f"{name} must be {self._valid()}{alternative}, got {value}")

    def inequality(self, name: str) -> str:
        """Return the bounds as an inequality for `name`, such as "name>=1" or "0<name<=1"."""
        low, high = self.ends()
        least = "=" if self.above is None else ""
        most = "=" if self.below is None else ""
        if low is not None and high is not None:
            return f"{low:g}<{least}{name}<{most}{high:g}"
        if low is not None:
            return f"{name}>{least}{low:g}"
        return name if high is None else f"{name}<{most}{high:g}"

    def ends(self) -> tuple[float | None, float | None]:
        """Return the lower and upper bounds, regardless of whether they are exclusive."""
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        return low, high

    def _valid(self) -> str:
        low, high = self.ends()
        if low is None or high is None:
            return self.inequality("")
        left = "[" if self.above is None else "("
        right = "]" if self.below is None else ")"
        return f"in {left}{low:g}, {high:g}{right}"


_KINDS: Mapping[type, tuple[str, tuple[type, ...]]] = MappingProxyType(
    {
        bool: ("true or false", (bool, np.bool_)),
        int: ("an integer", (int, np.integer)),
        float: ("a number", (int, float, np.integer, np.floating)),
        str: ("a string", (str,)),
    }
)
SCALARS: Mapping[str, type] = MappingProxyType(  # fields with one number per transition
    {
        "first": bool, "last": bool, "terminated": bool, "truncated": bool,
        "reward": float, "discount": float, "n_steps": int,
    }
)  # fmt: skip
_DTYPES = {
    bool: ("a bool", (jnp.bool_,)),
    int: ("an integer", (jnp.integer,)),
    float: ("a real", (jnp.integer, jnp.floating)),
}


def check_kind(name: str, value: Any, kind: Any, alternative: str = "") -> None:
    """Raise ValueError unless a value has type `kind`; checks only bool, int, float and str."""
    words, types = _KINDS.get(kind, ("", (object,)))
    if not isinstance(value, types) or (isinstance(value, bool) and kind in (int, float)):
        raise ValueError(f"{name} must be {words}{alternative}, got {value!r}")


def check_choice(name: str, value: str, choices: Sequence[str], alternative: str = "") -> None:
    """Raise ValueError unless a value is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}{alternative}, got {value!r}")


def check_size(name: str, value: Any) -> None:
    """Raise ValueError unless a value is a positive integer."""
    Bounds(at_least=1).check(name, value, kind=int)


def check_array(
    name: str,
    value: Any,
    shape: tuple[int, ...],
    kind: type,
    hint: Callable[[tuple[int, ...]], str] = lambda given: "",
) -> None:
    """Raise ValueError unless a value is an array with the given shape and kind of dtype.

    `kind` is bool, int or float; float stands for any real dtype. `hint` maps a wrong shape to
    advice, such as ": use x[:, 0]".
    """
    if not hasattr(value, "dtype") and not isinstance(value, bool | int | float | complex):
        raise ValueError(f"{name} must be an array, got {type(value).__name__}")
    (words, dtypes), given, dtype = _DTYPES[kind], jnp.shape(value), jnp.result_type(value)
    if given != shape:
        raise ValueError(
            f"{name} must be {words} array of shape {list(shape)}, got {dtype} of "
            f"shape {list(given)}{hint(given)}"
        )
    if not any(jnp.issubdtype(dtype, valid) for valid in dtypes):
        how = f": use {name.split()[0]} > 0" if kind is bool else ""
        raise ValueError(f"{name} must be {words} array, got {dtype}{how}")


def check_scalar(name: str, example: Any, kind: type) -> None:
    """Raise ValueError unless the field `name` of the example is a scalar of the given kind.

    `example` is the value of the field. For kinds, see `check_array`.
    """
    check_array(f"{name} of the example", example, (), kind)


def as_int32(name: str, given: Any, beyond: int) -> jax.Array:
    """Convert integers to int32, with `beyond` in place of integers outside the int32 range."""
    numbers = given if isinstance(given, jax.Array) else np.asarray(given)
    if not jnp.issubdtype(numbers.dtype, jnp.integer):
        raise ValueError(f"{name} must be integers, got dtype {numbers.dtype}")
    if numbers.dtype in (jnp.int64, jnp.uint64, jnp.uint32):
        bounds = jnp.iinfo(jnp.int32)
        make: Any = jnp if isinstance(numbers, jax.Array) else np
        fits = (numbers >= bounds.min) & (numbers <= bounds.max)
        numbers = make.where(fits, numbers.astype(jnp.int32), np.int32(beyond))
    return jnp.asarray(numbers, jnp.int32)


def slots_within(given: Any, count: int) -> jax.Array:
    """Convert slots on the host to int32, and return JAX arrays unchanged.

    Raises:
      ValueError: If slots on the host are not integers in [0, `count`).
    """
    if isinstance(given, jax.Array):
        return given
    slots = np.asarray(given)
    if slots.dtype.kind not in "iu":
        raise ValueError(f"slots must be integers, got dtype {slots.dtype}")
    if slots.size and not (slots.min() >= 0 and slots.max() < count):
        raise ValueError(
            f"slots must be in [0, {count - 1}], got values in [{slots.min()}, {slots.max()}]"
        )
    return jnp.asarray(slots, jnp.int32)


def zero_based(name: str, given: Any, valid: range) -> np.ndarray:
    """Return recorded discrete actions `[...]`, minus the first valid action, as int32.

    Raises:
      ValueError: If `valid` is not a range of successive integers, or an action is not in it.
    """
    if not isinstance(valid, range) or not valid or valid.step != 1:
        raise ValueError(f"actions must be None or a range such as range(2), got {valid!r}")
    actions = np.asarray(given)
    if actions.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got dtype {actions.dtype}")
    outside = (actions < valid[0]) | (actions > valid[-1])
    if outside.any():
        raise ValueError(
            f"{name} must be in [{valid[0]}, {valid[-1]}], got {outside.sum()} of {actions.size} "
            f"outside, with values from {actions.min()} to {actions.max()}: pass the range of the "
            "task's actions"
        )
    return (actions.astype(np.int64) - valid.start).astype(np.int32)


def find_overflow(array: np.ndarray, dtype: Any) -> Any:
    """Return an element of an array that is out of range for an integer dtype, or None."""
    if array.size:
        bounds = jnp.iinfo(dtype)  # JAX would drop the upper 32 bits of 64-bit integers
        for value in (array.min(), array.max()):
            if not bounds.min <= value <= bounds.max:
                return value
    return None
