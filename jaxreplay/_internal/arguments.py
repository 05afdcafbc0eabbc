"""Checks of arguments. Every error is a ValueError of one line; NaN is never accepted."""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

_LARGEST = float(np.finfo(np.float32).max)


class Bounds(NamedTuple):
    """The interval that a number must lie in; None leaves an end open."""

    at_least: float | None = None
    above: float | None = None  # as `at_least`, the bound itself excluded
    at_most: float | None = None
    below: float | None = None  # as `at_most`, the bound itself excluded
    finite: bool = True  # refuse infinity, too

    def check(self, name: str, value: float, alternative: str = "") -> None:
        """Refuse a `value` outside; `alternative` ends the message with what else would do.

        A value that a program has as an input is not known while it is traced: who calls the
        program has to check it.
        """
        if isinstance(value, Tracer):
            return
        if isinstance(value, jax.Array | np.ndarray) and value.ndim == 0:
            value = value.item()
        check_kind(name, value, float, alternative)
        if self.finite and abs(value) > _LARGEST:
            raise ValueError(f"{name} is {value}: it must be finite{alternative}")
        if not self._hold(value):
            raise ValueError(f"{name} is {value}: it must {self._demand()}{alternative}")

    def inequality(self, name: str) -> str:
        """Return the bounds as an inequality of `name`, such as "name>=1" or "0<name<=1"."""
        low, high = self.ends()
        least = "=" if self.above is None else ""
        most = "=" if self.below is None else ""
        if low is not None and high is not None:
            return f"{low:g}<{least}{name}<{most}{high:g}"
        if low is not None:
            return f"{name}>{least}{low:g}"
        return name if high is None else f"{name}<{most}{high:g}"

    def ends(self) -> tuple[float | None, float | None]:
        """Return the lower and the upper bound, whether they are excluded or not."""
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        return low, high

    def _hold(self, value: float) -> bool:
        return (
            not math.isnan(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def _demand(self) -> str:
        """Return what a number must do to lie within."""
        low, high = self.ends()
        if low is not None and high is not None:
            left = "[" if self.above is None else "("
            right = "]" if self.below is None else ")"
            return f"lie in {left}{low:g}, {high:g}{right}"
        if low == 0:
            return "not be negative" if self.above is None else "be positive"
        if low is not None:
            return f"be {'at least' if self.above is None else 'above'} {low:g}"
        if high is not None:
            return f"be {'at most' if self.below is None else 'below'} {high:g}"
        return "be a number"


_KINDS: Mapping[type, tuple[str, tuple[type, ...]]] = MappingProxyType(
    {
        bool: ("true or false", (bool, np.bool_)),
        int: ("a whole number", (int, np.integer)),
        float: ("a number", (int, float, np.integer, np.floating)),
        str: ("a name", (str,)),
    }
)


def check_kind(name: str, value: Any, kind: Any, alternative: str = "") -> None:
    """Refuse a value of another kind; kinds other than bool, int, float and str allow any."""
    words, types = _KINDS.get(kind, ("", (object,)))
    if not isinstance(value, types) or (isinstance(value, bool) and kind in (int, float)):
        raise ValueError(f"{name} is {value!r}: it must be {words}{alternative}")


def check_choice(name: str, value: str, choices: Sequence[str], alternative: str = "") -> None:
    """Refuse what is none of `choices`; `alternative` ends the message with what else would do."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: use one of {', '.join(choices)}{alternative}")


def check_feedback_arrays(
    feedback: Mapping[str, Any], wanted: tuple[int, ...], verb: str, what: str
) -> None:
    """Refuse feedback that is not one real number for each transition.

    Args:
      feedback: by name.
      wanted: the shape of the transitions: `[B]`, or `[B, T]` of stretches of T.
      verb: that was called, such as "update".
      what: these transitions, such as "sampled transition".
    """
    for name, values in feedback.items():
        if not hasattr(values, "dtype") and not isinstance(values, int | float | complex):
            raise ValueError(f"{verb} was given {name} as {type(values).__name__}: give an array")
        shape, dtype = jnp.shape(values), jnp.result_type(values)
        if shape != wanted:
            mend = _mend(name, shape, wanted[0]) if len(wanted) == 1 else _SAME_BATCH
            raise ValueError(
                f"{verb} was given {name} of shape {_show(shape)}, and wants {_show(wanted)}, one "
                f"number for each {what}: {mend}"
            )
        if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
            raise ValueError(f"{verb} was given {name} of dtype {dtype}: give real numbers")


def check_episode_return(given: Any) -> None:
    """Refuse what is not the one return of an episode, or mean of several."""
    if not hasattr(given, "dtype") and not isinstance(given, int | float | complex):
        raise ValueError(
            f"observe was given episode_return as {type(given).__name__}: give a number"
        )
    shape, dtype = jnp.shape(given), jnp.result_type(given)
    if shape:
        raise ValueError(
            f"observe was given episode_return of shape {_show(shape)}, and wants []: give their "
            "mean, or call it for each"
        )
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise ValueError(f"observe was given episode_return of dtype {dtype}: give a real number")


def as_int32(name: str, given: Any, beyond: int) -> jax.Array:
    """Return whole numbers as int32, `beyond` in place of those that it does not hold."""
    numbers = given if isinstance(given, jax.Array) else np.asarray(given)
    if not jnp.issubdtype(numbers.dtype, jnp.integer):
        raise ValueError(f"{name} are of dtype {numbers.dtype}: give whole numbers")
    if numbers.dtype in (jnp.int64, jnp.uint64, jnp.uint32):
        bounds = jnp.iinfo(jnp.int32)
        make: Any = jnp if isinstance(numbers, jax.Array) else np
        fits = (numbers >= bounds.min) & (numbers <= bounds.max)
        numbers = make.where(fits, numbers.astype(jnp.int32), np.int32(beyond))
    return jnp.asarray(numbers, jnp.int32)


def slots_within(given: Any, count: int) -> jax.Array:
    """Return slots as int32; refuse those on the host that are none of so many."""
    if isinstance(given, jax.Array):
        return given
    slots = np.asarray(given)
    if slots.dtype.kind not in "iu":
        raise ValueError(f"slots are of dtype {slots.dtype}: give whole numbers")
    if slots.size and not (slots.min() >= 0 and slots.max() < count):
        raise ValueError(
            f"slots reach from {slots.min()} to {slots.max()}, and there are {count}: leave out "
            "those that are none"
        )
    return jnp.asarray(slots, jnp.int32)


def check_known(given: Iterable[str], known: Iterable[str], wanted: Iterable[str]) -> None:
    """Refuse feedback by a name that nobody reads: a misspelt one would be missed in silence."""
    unknown = sorted(set(given) - set(known) - set(wanted))
    if unknown:
        reads = ", ".join(sorted(wanted)) or "no feedback"
        raise ValueError(
            f"no feedback is called {', '.join(unknown)}: this replay method reads {reads}"
        )


class Handing(NamedTuple):
    """What is handed over to what, in the words of a refusal."""

    what: str
    done: str
    holder: str


ADDED = Handing("transition", "added", "ring")
PUSHED = Handing("step", "pushed", "window")


def check_leaf(
    name: str, leaf: Any, shape: tuple[int, ...], dtype: np.dtype, num_envs: int,
    handing: Handing = ADDED,
) -> None:  # fmt: skip
    """Refuse one field of new transitions that the ring can't hold as it is.

    Args:
      name: of the field.
      leaf: what was given.
      shape: of one row in the ring.
      dtype: of the field in the ring.
      num_envs: rows of one add.
      handing: other words than those of the ring.
    """
    done, holder = handing.done, handing.holder
    given, wanted = jnp.shape(leaf), (num_envs, *shape)
    if given != wanted:
        rows = "one row for the environment" if num_envs == 1 else f"a row for each of {num_envs}"
        hint = f" (add an axis in front: {name}[None])" if (1, *given) == wanted else ""
        raise ValueError(
            f"{name} was {done} with shape {_show(given)}, and the {holder} wants {_show(wanted)}, "
            f"{rows}{hint}"
        )
    kind = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    on_host = isinstance(leaf, np.ndarray)
    if not _fits(kind, dtype, by_value=on_host):
        how = f"{name} > 0" if dtype == np.dtype(bool) else f"{name}.astype('{dtype.name}')"
        other = f", or give init an example with {kind}" if _may_be(name, kind) else ""
        raise ValueError(
            f"{name} was {done} as {kind}, and the {holder}, by its example, holds {dtype}: "
            f"convert it ({how}){other}"
        )
    # A float that is too large is infinite, and counted as such.
    whole = on_host and jnp.issubdtype(dtype, jnp.integer)
    if whole and (value := beyond(leaf, dtype)) is not None:
        raise ValueError(f"{name} holds {value}, and the {holder} {dtype}, which ends before")


def check_single(reader: str, name: str, example: Any, kind: type) -> None:
    """Refuse an example of a field that is to be one number, if it is more or another.

    Args:
      reader: who looks at the field, such as "this sampler".
      name: of the field.
      example: of one step, not batched.
      kind: bool; int: a whole number; float: any real one.
    """
    wanted, kinds = _SINGLES[kind]
    wants = f"{reader} looks at {name} as {wanted} of each step, shape [], and the example's is"
    if not hasattr(example, "dtype") and not isinstance(example, bool | int | float | complex):
        raise ValueError(f"{wants} a {type(example).__name__}: give an array")
    shape, dtype = jnp.shape(example), jnp.result_type(example)
    if shape:
        shown = f"{dtype} of shape {_show(shape)}"
        raise ValueError(f"{wants} {shown}: leave out the axes of batches and columns")
    if not any(jnp.issubdtype(dtype, one) for one in kinds):
        how = f" ({name} > 0)" if kind is bool else ""
        raise ValueError(f"{wants} {dtype}: convert it{how}")


def can_be_stored(dtype: Any) -> bool:
    """Tell whether arrays of a dtype can be put in words: PRNG keys and parts of bytes can't."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits >= 8
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits >= 8
    return jnp.issubdtype(dtype, jnp.bool_)


def _may_be(name: str, dtype: Any) -> bool:
    """Tell whether nobody refuses an example in which a field is of a dtype."""
    kinds = _SINGLES[SINGLE[name]][1] if name in SINGLE else (dtype,)
    return can_be_stored(dtype) and any(jnp.issubdtype(dtype, kind) for kind in kinds)


SINGLE: Mapping[str, type] = MappingProxyType(  # fields that are one number, where they are read
    {
        "first": bool, "last": bool, "terminated": bool, "truncated": bool,
        "reward": float, "discount": float, "n_steps": int,
    }
)  # fmt: skip
_SINGLES = {
    bool: ("one bool", (jnp.bool_,)),
    int: ("one whole number", (jnp.integer,)),
    float: ("one real number", (jnp.integer, jnp.floating)),
}


def beyond(array: np.ndarray, dtype: Any) -> Any:
    """Return a number of an array that a narrower dtype would wrap or make infinite, or None."""
    if np.issubdtype(array.dtype, np.inexact) and jnp.issubdtype(dtype, jnp.inexact):
        with np.errstate(over="ignore"):
            lost = np.isinf(array.astype(dtype)) & ~np.isinf(array)
        return array[lost][0] if lost.any() else None
    if array.size and jnp.issubdtype(dtype, jnp.integer):
        bounds = jnp.iinfo(dtype)  # of 64 bits, JAX would drop the upper 32
        for value in (array.min(), array.max()):
            if not bounds.min <= value <= bounds.max:
                return value
    return None


def _fits(given: Any, wanted: np.dtype, *, by_value: bool) -> bool:
    """Tell whether a dtype holds what comes as another: wider floats do, integers as they are.

    Integers that are wider are left to a look at their values, where these are at hand.
    """
    whole = all(jnp.issubdtype(dtype, jnp.integer) for dtype in (given, wanted))
    rule = "safe" if whole and not by_value else "same_kind"
    return given == wanted or bool(jnp.can_cast(given, wanted, rule))


_SAME_BATCH = "give that of the same batch"


def _mend(name: str, shape: tuple[int, ...], rows: int) -> str:
    """Return what would make of feedback of this shape one number per row."""
    if shape == (rows, 1):
        return f"give {name}[:, 0]"
    if shape == (1, rows):
        return f"give {name}[0]"
    if len(shape) == 2 and shape[1] == rows:
        return f"choose or reduce, such as {name}.mean(axis=0)"
    if len(shape) == 2 and shape[0] == rows:
        return f"choose or reduce, such as {name}.mean(axis=1)"
    if not shape:
        return f"before it is averaged, or jnp.full({rows}, {name})"
    return _SAME_BATCH


def _show(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
