"""Fields of a row by name, whatever pytree the row is.

A row is what one step leaves in the ring: a `Transition`, or any other pytree of arrays. Samplers
that look into rows do it through `get`, so that a dict with the key "first" serves them as well as
a NamedTuple or a dataclass with such a field; where a row has no such thing, they find None.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

Row = Any  # what is stored of one step: a `Transition`, or any pytree of arrays of the user's own


def get(row: Row, name: str) -> Any:
    """Return a field of a row, None if it has none of that name."""
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)


def has(row: Row, name: str) -> bool:
    """Tell whether a row has a field of that name with an array in it."""
    return bool(jax.tree.leaves(get(row, name)))


def replace(row: Row, **changes: Any) -> Row:
    """Return a row of the same type with other values in some of its fields.

    Args:
      row: a mapping, a NamedTuple or a dataclass.
      **changes: new values of fields that it has.

    Raises:
      ValueError: the row is of another type.
    """
    if isinstance(row, Mapping):
        return type(row)({**row, **changes})  # pyright: ignore[reportCallIssue]
    if isinstance(row, tuple) and hasattr(row, "_replace"):
        return row._replace(**changes)  # pyright: ignore[reportAttributeAccessIssue]
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return dataclasses.replace(row, **changes)
    raise ValueError(
        f"a row of type {type(row).__name__} has no fields to replace: use a dict, a NamedTuple or "
        "a dataclass"
    )
