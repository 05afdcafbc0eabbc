"""Type checks of values that were read from a file."""

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


def number(value: Any) -> bool:
    """Return whether a value is a number, including NaN and infinity."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole(value: Any) -> bool:
    """Return whether a value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def natural(value: Any) -> bool:
    """Return whether a value is an integer of at least 0."""
    return whole(value) and value >= 0


def text(value: Any) -> bool:
    """Return whether a value is a string."""
    return isinstance(value, str)


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda value: value is None or check(value)


def many(check: Check, count: int | None = None) -> Check:
    """Return a check of a list of `count` values, or by default of a nonempty list."""

    def passes(value: Any) -> bool:
        right = isinstance(value, list) and (len(value) == count if count else len(value) > 0)
        return right and all(map(check, value))

    return passes


def list_of(check: Check) -> Check:
    """Return a check of a list, which may be empty, given a check of its values."""
    return lambda value: isinstance(value, list) and all(map(check, value))


def record(kinds: Mapping[str, Check]) -> Check:
    """Return a check of a JSON object, given checks of its fields as in the function `check`."""

    def passes(value: Any) -> bool:
        own = value if isinstance(value, dict) else {}
        fields = ((field, field.removesuffix("?"), check) for field, check in kinds.items())
        return isinstance(value, dict) and all(
            check(own[name]) if name in own else field != name for field, name, check in fields
        )

    return passes


def dict_of(check: Check) -> Check:
    """Return a check of a JSON object, given a check of its values."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def anything(value: Any) -> bool:
    """Accept any value."""
    del value
    return True


def check(saved: Any, kinds: Mapping[str, Check]) -> None:
    """Check the fields of a JSON object.

    Args:
      saved: the object.
      kinds: checks by field; fields whose names end with "?" are optional.

    Raises:
      ValueError: it is no object, or a field is missing or of the wrong type; the message names it.
    """
    if not isinstance(saved, dict):
        raise ValueError("no JSON object")
    for field, passes in kinds.items():
        name = field.removesuffix("?")
        if name not in saved:
            if field == name:
                raise ValueError(f"the field {name} is missing")
        elif not passes(saved[name]):
            raise ValueError(f"{name} is {_short(saved[name])}")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
