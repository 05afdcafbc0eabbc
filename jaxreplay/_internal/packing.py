"""Pytrees of arrays packed into rows of 32-bit words."""

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal.arguments import SCALARS, find_overflow
from jaxreplay.types import Array, Tree

_WHOLE = "the transition"  # the name of a leaf that is the whole pytree
_ITEM_SIZES = (8, 4, 2, 1)  # item sizes in bytes, in the order of the fields in a row


class Field(NamedTuple):
    """The location of a leaf of a pytree in a packed row."""

    name: str  # path in the pytree, such as "extras.noise"
    top: str  # first part of the path, such as "extras"
    start: int  # byte offset in the row
    shape: tuple[int, ...]  # shape of the leaf, without the axis of rows
    dtype: str  # dtype of the leaf

    @property
    def stored(self) -> jnp.dtype:
        """The dtype in which the field is stored; a boolean takes one byte."""
        return jnp.dtype("uint8" if self.dtype == "bool" else self.dtype)


class Layout(NamedTuple):
    """The locations of all leaves of a pytree in a packed row."""

    treedef: Any  # jax.tree_util.PyTreeDef of the pytree
    fields: tuple[Field, ...]  # one field per leaf, in leaf order
    words: int  # 32-bit words per row


def plan(example: Tree) -> Layout:
    """Return the layout of a pytree: widest dtypes first, leaves of equal width padded to words.

    Raises:
      ValueError: If a leaf is not an array, a dtype can't be stored, or there are no leaves.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(example)
    if not leaves:
        raise ValueError(f"{_WHOLE} contains no arrays: pass one transition as the example")
    fields = []
    for path, leaf in leaves:
        names = _names(path)
        try:
            dtype = jnp.result_type(leaf)
        except TypeError as error:  # a string, or an object of an unregistered class
            if isinstance(leaf, np.ndarray | np.generic):
                message = f"{names[0]} with dtype {leaf.dtype} can't be stored: convert it first"
                raise ValueError(message) from error
            raise ValueError(
                f"{names[0]} must be an array, got {type(leaf).__name__}: remove it, or register "
                "its class with jax.tree_util.register_dataclass"
            ) from error
        if not _can_be_stored(dtype):
            raise ValueError(f"{names[0]} with dtype {dtype} can't be stored: convert it first")
        fields.append(Field(*names, 0, jnp.shape(leaf), dtype.name))
    end = 0
    for size in _ITEM_SIZES:
        for number, field in enumerate(fields):
            if field.stored.itemsize == size:
                fields[number] = field._replace(start=end)
                end += size * math.prod(field.shape)
        end = -(-end // 4) * 4
    return Layout(treedef, tuple(fields), end // 4)


def check_fits(
    layout: Layout,
    tree: Tree,
    lead: tuple[int, ...],
    without: Collection[str] = (),
    of: str = "",
) -> None:
    """Raise ValueError, naming the field, unless transitions can be stored without loss.

    Args:
      layout: layout of one transition.
      tree: pytree with leaves `[*lead, ...]`.
      lead: leading axes `[E]` or `[T, E]` for E environments.
      without: names of top-level fields to skip.
      of: name of the transition field whose value is this pytree, or "" for a whole transition.
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [(*_names(path), leaf) for path, leaf in leaves]
    given = {name: leaf for name, top, leaf in named if top not in without}
    places = [field for field in layout.fields if field.top not in without]
    names = [field.name for field in places]
    whole = of or "the transition"
    for name in (*names, *given):
        if name not in given and any(path.startswith(f"{name}[0]") for path in given):
            raise ValueError(
                f"{name} of {whole} must be an array as in the example, got a list or tuple: pass "
                f"jnp.asarray({name})"
            )
        if name not in given or name not in names:
            lacks = "lacks" if name in names else "has"
            raise ValueError(f"{whole} {lacks} {name}, unlike the example")
    if list(given) != names:  # of a different type: JAX sorts the fields of dicts only
        raise ValueError(
            f"{whole} ({type(tree).__name__}) has a different field order from the example: use "
            "the same type"
        )
    for field in places:
        name = field.name if not of else of if field.name == _WHOLE else f"{of}, {field.name}"
        _check_leaf(name, given[field.name], lead, field)


def as_stored(layout: Layout, tree: Tree, apart: Mapping[str, str] = MappingProxyType({})) -> Tree:
    """Cast a pytree that passes `check_fits` to the dtypes of the layout.

    Numbers that overflow a narrower float become infinite.

    Args:
      layout: layout of one transition.
      tree: pytree of arrays.
      apart: dtypes of the leaves that are stored outside this layout, by the name of the leaf.
    """
    dtypes = {field.name: field.dtype for field in layout.fields} | dict(apart)

    def cast(path: Any, leaf: Any) -> Array:
        name, leaf = _names(path)[0], jnp.asarray(leaf)
        dtype: Any = dtypes.get(name, leaf.dtype)
        whole = name not in apart and jnp.issubdtype(leaf.dtype, jnp.integer)
        return leaf.astype(dtype) if whole or jnp.issubdtype(dtype, jnp.floating) else leaf

    return jax.tree_util.tree_map_with_path(cast, tree)


def unpack(layout: Layout, rows: Array) -> Tree:
    """Unpack words `[B, W]` into a pytree `[B, ...]`."""
    leaves = []
    for field in layout.fields:
        item, count = field.stored.itemsize, math.prod(field.shape)
        words = rows[:, field.start // 4 : -(-(field.start + item * count) // 4)]
        if item == 8:
            words = words.reshape(rows.shape[0], count, 2)
        items = jax.lax.bitcast_convert_type(words, field.stored).reshape(rows.shape[0], -1)
        first = field.start % 4 // item
        values = items[:, first : first + count].astype(field.dtype)
        leaves.append(values.reshape(rows.shape[0], *field.shape))
    return jax.tree.unflatten(layout.treedef, leaves)


def pack(layout: Layout, tree: Tree, rows: int) -> Array:
    """Pack a pytree `[rows, ...]` into words `[rows, W]`."""
    leaves = jax.tree.leaves(tree)
    parts: dict[int, list[Array]] = {size: [] for size in _ITEM_SIZES}
    for leaf, field in zip(leaves, layout.fields, strict=True):
        unsigned = f"uint{8 * field.stored.itemsize}"
        items = jnp.asarray(leaf).reshape(rows, -1).astype(field.stored)
        bits = jax.lax.bitcast_convert_type(items, unsigned)
        parts[field.stored.itemsize].append(bits)
    columns = [_words(jnp.concatenate(part, axis=1)) for part in parts.values() if part]
    return jnp.concatenate(columns, axis=1)


def _check_leaf(name: str, leaf: Any, lead: tuple[int, ...], field: Field) -> None:
    """Raise ValueError unless the array called `name`, `[*lead, ...]`, fits into a field."""
    given, wanted, dtype = jnp.shape(leaf), (*lead, *field.shape), jnp.dtype(field.dtype)
    if given != wanted:
        hint = f": add an axis with {name}[None]" if (1, *given) == wanted else ""
        raise ValueError(
            f"{name} must have shape {list(wanted)} for num_envs={lead[-1]} and this example, got "
            f"{list(given)}{hint}"
        )
    kind = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    on_host = isinstance(leaf, np.ndarray)
    if not _can_be_cast(kind, dtype, by_value=on_host):
        how = f"{name} > 0" if dtype == np.dtype(bool) else f"{name}.astype('{dtype.name}')"
        fixed = name in SCALARS or not _can_be_stored(kind)
        remedy = "" if fixed else f", or pass init an example with dtype {kind}"
        raise ValueError(
            f"{name} must have dtype {dtype} as in the example, got {kind}: use {how}{remedy}"
        )
    # Floats that overflow are accepted: they become infinite and are counted.
    if on_host and jnp.issubdtype(dtype, jnp.integer):
        value = find_overflow(leaf, dtype)
        if value is not None:
            raise ValueError(f"{name} contains {value}, which {dtype} can't represent")


def _can_be_stored(dtype: Any) -> bool:
    """Return whether a dtype can be stored; PRNG keys and dtypes below 8 bits can't."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits >= 8
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits >= 8
    return jnp.issubdtype(dtype, jnp.bool_)


def _can_be_cast(given: Any, wanted: np.dtype, *, by_value: bool) -> bool:
    """Return whether `given` can be cast to `wanted`; floats may be narrowed, integers may not.

    With `by_value`, wider integers are accepted because `find_overflow` checks their values.
    """
    integers = all(jnp.issubdtype(dtype, jnp.integer) for dtype in (given, wanted))
    rule = "safe" if integers and not by_value else "same_kind"
    return given == wanted or bool(jnp.can_cast(given, wanted, rule))


def _names(path: Any) -> tuple[str, str]:
    """Return the name of a leaf, such as "extras.noise", and its first part, such as "extras"."""
    if not path:
        return _WHOLE, ""
    top = jax.tree_util.keystr(path[:1], simple=True)
    return top + jax.tree_util.keystr(path[1:]), top


def _words(items: Array) -> Array:
    """Convert unsigned integers `[E, n]` of any width to zero-padded 32-bit words."""
    rows, count = items.shape
    size = items.dtype.itemsize
    if size < 4:
        per_word = 4 // size
        items = jnp.pad(items, ((0, 0), (0, -count % per_word)))
        items = items.reshape(rows, -1, per_word)
    return jax.lax.bitcast_convert_type(items, jnp.uint32).reshape(rows, -1)
