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
from jax.core import Tracer

_LARGEST = float(np.finfo(np.float32).max)


class Bounds(NamedTuple):
    """An interval of numbers; None means that there is no such bound."""

    at_least: float | None = None  # inclusive lower bound
    above: float | None = None  # exclusive lower bound
    at_most: float | None = None  # inclusive upper bound
    below: float | None = None  # exclusive upper bound
    finite: bool = True  # whether infinity is excluded

    def check(self, name: str, value: float, alternative: str = "") -> None:
        """Raise ValueError if a value is out of bounds; the message includes `alternative`.

        Traced values are not checked here; the caller of the traced function checks them.
        """
        if isinstance(value, Tracer):
            return
        if isinstance(value, jax.Array | np.ndarray) and value.ndim == 0:
            value = value.item()
        check_kind(name, value, float, alternative)
        if self.finite and abs(value) > _LARGEST:
            raise ValueError(f"{name} must be finite{alternative}, got {value}")
        if not self._contains(value):
            raise ValueError(f"{name} must be {self._requirement()}{alternative}, got {value}")

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

    def _contains(self, value: float) -> bool:
        return (
            not math.isnan(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def _requirement(self) -> str:
        low, high = self.ends()
        if low is not None and high is not None:
            left = "[" if self.above is None else "("
            right = "]" if self.below is None else ")"
            return f"in {left}{low:g}, {high:g}{right}"
        if low == 0:
            return "non-negative" if self.above is None else "positive"
        if low is not None:
            return f"{'at least' if self.above is None else 'above'} {low:g}"
        if high is not None:
            return f"{'at most' if self.below is None else 'below'} {high:g}"
        return "a number"


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


def check_array(
    name: str,
    value: Any,
    shape: tuple[int, ...],
    kind: type,
    hint: Callable[[tuple[int, ...]], str] = lambda given: "",
) -> None:
    """Raise ValueError unless a value is an array of the given shape and type.

    Args:
      name: name for error messages, such as "reward of the example".
      value: the array, or a Python number.
      shape: expected shape.
      kind: bool, int for an integer, or float for any real number.
      hint: function from a wrong shape to advice, such as ": use x[:, 0]".
    """
    if not hasattr(value, "dtype") and not isinstance(value, bool | int | float | complex):
        raise ValueError(f"{name} must be an array, got {type(value).__name__}")
    (words, kinds), given, dtype = _DTYPES[kind], jnp.shape(value), jnp.result_type(value)
    if given != shape:
        raise ValueError(
            f"{name} must be {words} array of shape {_show(shape)}, got {dtype} of "
            f"shape {_show(given)}{hint(given)}"
        )
    if not any(jnp.issubdtype(dtype, one) for one in kinds):
        how = f": use {name.split()[0]} > 0" if kind is bool else ""
        raise ValueError(f"{name} must be {words} array, got {dtype}{how}")


def check_scalar(name: str, example: Any, kind: type) -> None:
    """Raise ValueError unless a field of the example transition is a scalar, see `check_array`."""
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


def check_slots(given: Any, count: int) -> Any:
    """Validate slots on the host (integers below `count`) and convert them to an integer array."""
    if isinstance(given, jax.Array):
        return given
    slots = np.asarray(given)
    if slots.dtype.kind not in "iu":
        raise ValueError(f"slots must be integers, got dtype {slots.dtype}")
    if slots.size and not (slots.min() >= 0 and slots.max() < count):
        raise ValueError(
            f"slots must be in [0, {count - 1}], got values in [{slots.min()}, {slots.max()}]"
        )
    return slots


def slots_within(given: Any, count: int) -> jax.Array:
    """Convert slots to int32; raise ValueError if slots on the host are out of range."""
    slots = check_slots(given, count)
    return slots if isinstance(slots, jax.Array) else jnp.asarray(slots, jnp.int32)


def zero_based(name: str, given: Any, valid: range) -> np.ndarray:
    """Return recorded discrete actions `[...]` as int32, numbered from 0, not from `valid.start`.

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
            f"outside, and values from {actions.min()} to {actions.max()}: use those of the task"
        )
    return (actions.astype(np.int64) - valid.start).astype(np.int32)


def check_leaf(
    name: str, leaf: Any, shape: tuple[int, ...], dtype: np.dtype, num_envs: int
) -> None:
    """Raise ValueError unless a field of new transitions can be stored without loss.

    Args:
      name: name of the field.
      leaf: value of the field, `[E, ...]`.
      shape: shape of the field in the example transition.
      dtype: dtype of the field in the example transition.
      num_envs: number of environments E.
    """
    given, wanted = jnp.shape(leaf), (num_envs, *shape)
    if given != wanted:
        hint = f": add an axis with {name}[None]" if (1, *given) == wanted else ""
        raise ValueError(
            f"{name} must have shape {_show(wanted)} for num_envs={num_envs} and this example, got "
            f"{_show(given)}{hint}"
        )
    kind = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    on_host = isinstance(leaf, np.ndarray)
    if not _can_be_cast(kind, dtype, by_value=on_host):
        how = f"{name} > 0" if dtype == np.dtype(bool) else f"{name}.astype('{dtype.name}')"
        other = f", or pass init an example with dtype {kind}" if _may_be(name, kind) else ""
        raise ValueError(
            f"{name} must have dtype {dtype} as in the example, got {kind}: use {how}{other}"
        )
    # Floats that overflow are accepted: they become infinite and are counted.
    if on_host and jnp.issubdtype(dtype, jnp.integer):
        value = find_overflow(leaf, dtype)
        if value is not None:
            raise ValueError(f"{name} contains {value}, which {dtype} can't represent")


def can_be_stored(dtype: Any) -> bool:
    """Return whether a dtype can be stored; PRNG keys and dtypes below 8 bits can't."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits >= 8
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits >= 8
    return jnp.issubdtype(dtype, jnp.bool_)


def _may_be(name: str, dtype: Any) -> bool:
    """Return whether the field `name` of an example transition may have a dtype."""
    kinds = _DTYPES[SCALARS[name]][1] if name in SCALARS else (dtype,)
    return can_be_stored(dtype) and any(jnp.issubdtype(dtype, kind) for kind in kinds)


def find_overflow(array: np.ndarray, dtype: Any) -> Any:
    """Return a number from an array that a narrower dtype can't represent, or None."""
    if np.issubdtype(array.dtype, np.inexact) and jnp.issubdtype(dtype, jnp.inexact):
        with np.errstate(over="ignore"):
            lost = np.isinf(array.astype(dtype)) & ~np.isinf(array)
        return array[lost][0] if lost.any() else None
    if array.size and jnp.issubdtype(dtype, jnp.integer):
        bounds = jnp.iinfo(dtype)  # JAX would drop the upper 32 bits of 64-bit integers
        for value in (array.min(), array.max()):
            if not bounds.min <= value <= bounds.max:
                return value
    return None


def _can_be_cast(given: Any, wanted: np.dtype, *, by_value: bool) -> bool:
    """Return whether `given` can be cast to `wanted`: any float width, but no narrower integers.

    With `by_value`, wider integers are accepted because `find_overflow` checks their values.
    """
    integers = all(jnp.issubdtype(dtype, jnp.integer) for dtype in (given, wanted))
    rule = "safe" if integers and not by_value else "same_kind"
    return given == wanted or bool(jnp.can_cast(given, wanted, rule))


def _show(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
