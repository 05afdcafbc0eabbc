"""Pytrees as few arrays, for calls from Python.

A call of a compiled function pays for every array that goes in or comes out: on a CPU a microsecond
for each result and two for each NumPy array, which for a replay's state, a batch and a row comes to
more than adding, sampling and updating take. Packed, each of them is one array of words, and those
arrays that are large.

Pack what crosses the border between Python and a compiled function, and unpack it on the other
side. Within a compiled loop there is no such border, and nothing to gain.
"""

import functools
import itertools
import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal import packing
from jaxreplay._internal.arguments import can_be_stored, find_overflow
from jaxreplay._internal.packing import Layout
from jaxreplay.types import Array, Tree

_LARGE = 2**15  # bytes of an array from which on handing it over takes less than copying it
_SHAPE_AND_DTYPE = operator.attrgetter("shape", "dtype")


class _Plan(NamedTuple):
    """Where the leaves of a pytree are."""

    treedef: Any  # jax.tree_util.PyTreeDef
    apart: tuple[bool, ...]  # of each leaf: it is not among the words
    kinds: tuple[Any, ...]  # of each leaf: that of the PRNG keys that it holds; None: it holds none
    layout: Layout | None  # of the leaves that are not apart, as one row; None: all are
    record: np.dtype | None  # the same row for NumPy
    names: tuple[str, ...]  # of each leaf: that of its field in the record; "": it is apart


class Packed:
    """A pytree as few arrays; itself a pytree, which may be donated.

    No dataclass: JAX takes several times as long to take those apart and put them together.
    """

    __slots__ = ("arrays", "plan")

    def __init__(self, arrays: tuple[Any, ...], plan: _Plan) -> None:
        """Use `pack`."""
        self.arrays = arrays  # [W] uint32, the bits of all small leaves; then the others as they
        # are. There are no words if there are no small leaves
        self.plan = plan


jax.tree_util.register_pytree_node(
    Packed,
    operator.attrgetter("arrays", "plan"),
    lambda plan, arrays: Packed(arrays, plan),
)


def pack(tree: Tree) -> Packed:
    """Return a pytree as few arrays.

    A pytree of NumPy arrays and numbers, such as a row from an environment on the host, is packed
    there; anything else belongs into a compiled function. Arrays of 32 KB or more stay as they are,
    and so do those that have no place in 32-bit words, such as complex numbers: copy them first if
    the environment writes into them again, since JAX may read them after a call has returned.

    Args:
      tree: any pytree of arrays, PRNG keys among them.

    Raises:
      ValueError: one line that names a leaf on the host which JAX can't hold as it is: a text, an
        object, bytes in another machine's order, or numbers beyond 32 bits (`jax_enable_x64` allows
        64).
    """
    leaves, treedef = jax.tree.flatten(tree)
    # Quickly, as every call pays for this: to ask whether something is a jax.Array takes longer.
    if not set(map(type, leaves)) <= {np.ndarray}:
        if any(isinstance(leaf, jax.Array) for leaf in leaves):
            for number, leaf in enumerate(leaves):
                if not isinstance(leaf, jax.Array):
                    _narrowed(treedef, number, np.asarray(leaf))
            return _pack(tree)
        leaves = [np.asarray(leaf) for leaf in leaves]
    plan, wider = _host_plan(treedef, tuple(map(_SHAPE_AND_DTYPE, leaves)), _wide())
    for number in wider:
        leaves[number] = _narrowed(treedef, number, leaves[number])
    if plan.record is None:
        return Packed(tuple(leaves), plan)
    words = np.zeros(plan.record.itemsize // 4, np.uint32)
    record = np.ndarray((), plan.record, words)
    for name, leaf in zip(plan.names, leaves, strict=True):
        if name:
            record[name] = leaf
    return _packed(plan, leaves, words)


def unpack(packed: Packed) -> Tree:
    """Return what was packed, bit for bit: in a compiled function, where it costs next to nothing.

    What was packed on the host is on the device then, in the dtypes that JAX has for it.
    """
    return _unpack(packed)


def as_numpy(packed: Packed) -> Tree:
    """Return what was packed as NumPy arrays, for learners that are no compiled functions.

    Where JAX computes on the CPU they are views of its memory, read-only and without a copy. Of
    PRNG keys they are the words.
    """
    plan, leaves = packed.plan, list(map(np.asarray, packed.arrays))
    if plan.record is not None:
        record, others = np.ndarray((), plan.record, leaves[0]), iter(leaves[1:])
        leaves = [record[name] if name else next(others) for name in plan.names]
    return jax.tree.unflatten(plan.treedef, leaves)


@functools.partial(jax.jit, inline=True)
def _pack(tree: Tree) -> Packed:
    leaves, treedef = jax.tree.flatten(tree)
    leaves = [jnp.asarray(x) for x in leaves]
    plan = _plan(treedef, tuple(map(_SHAPE_AND_DTYPE, leaves)), _wide())
    if plan.layout is None:
        return Packed(tuple(leaves), plan)
    small = [
        x if kind is None else jax.random.key_data(x)
        for x, kind, apart in zip(leaves, plan.kinds, plan.apart, strict=True)
        if not apart
    ]
    return _packed(plan, leaves, packing.pack(plan.layout, small, 1)[0])


@functools.partial(jax.jit, inline=True)
def _unpack(packed: Packed) -> Tree:
    plan = packed.plan
    others, small = iter(packed.arrays), iter(())
    if plan.layout is not None:
        words = jnp.asarray(next(others))
        small = iter(x[0] for x in packing.unpack(plan.layout, words[None]))
    leaves = []
    for apart, kind in zip(plan.apart, plan.kinds, strict=True):
        leaf = next(others if apart else small)
        leaves.append(leaf if kind is None else jax.random.wrap_key_data(leaf, impl=kind))
    return jax.tree.unflatten(plan.treedef, leaves)


def _packed(plan: _Plan, leaves: list[Any], words: Any) -> Packed:
    return Packed((words, *itertools.compress(leaves, plan.apart)), plan)


@functools.cache
def _host_plan(
    treedef: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...], wide: bool
) -> tuple[_Plan, tuple[int, ...]]:
    """Return `_plan` for NumPy arrays, and which hold numbers wider than JAX's."""
    wider = []
    for number, (_, dtype) in enumerate(leaves):
        if _own(treedef, number, dtype) != dtype:
            wider.append(number)
    return _plan(treedef, leaves, wide), tuple(wider)


@functools.cache
def _plan(treedef: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...], wide: bool) -> _Plan:
    """Plan for leaves of these shapes and dtypes, with JAX's numbers of 64 bits or without.

    One plan for all that are equal, as JAX compares them at every call.
    """
    del wide  # JAX knows, and other plans are made if it changes
    kinds, apart, small = [], [], []
    for shape, dtype in leaves:
        words, kind = _words_of(shape, dtype)
        kinds.append(kind)
        apart.append(words is None)
        if words is not None:
            small.append(words)
    names = tuple("" if alone else f"leaf {number}" for number, alone in enumerate(apart))
    if not small:
        return _Plan(treedef, tuple(apart), tuple(kinds), None, None, names)
    layout = packing.plan(small)
    record = np.dtype(
        {
            "names": list(filter(None, names)),
            "formats": [(np.dtype(field.dtype), field.shape) for field in layout.fields],
            "offsets": [field.start for field in layout.fields],
            "itemsize": 4 * layout.words,
        }
    )
    return _Plan(treedef, tuple(apart), tuple(kinds), layout, record, names)


def _words_of(shape: tuple[int, ...], dtype: Any) -> tuple[jax.ShapeDtypeStruct | None, Any]:
    """Return what of a leaf goes into words, None if nothing does, and its kind of PRNG keys."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        kinds = []

        def data() -> Array:
            keys = jnp.zeros(shape, dtype)
            kinds.append(jax.random.key_impl(keys))
            return jax.random.key_data(keys)

        leaf, kind = jax.eval_shape(data), kinds
    else:
        leaf, kind = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype)), [None]
    size = math.prod(leaf.shape) * leaf.dtype.itemsize
    storable = can_be_stored(leaf.dtype)
    if not (storable and 0 < size < _LARGE):
        return None, None
    return leaf, kind[0]


def _own(treedef: Any, number: int, dtype: np.dtype) -> np.dtype:
    """Return the dtype in which JAX holds a leaf from the host; refuse one that it has not."""
    if _is_jax_s(dtype):
        return jax.dtypes.canonicalize_dtype(dtype)
    why = "JAX has no such numbers: convert it, or leave it out"
    if not dtype.isnative:
        why = "its bytes are in another machine's order: convert it (astype)"
    raise ValueError(f"{_name(treedef, number)} is of dtype {dtype}, and {why}")


def _is_jax_s(dtype: np.dtype) -> bool:
    """Tell whether JAX takes NumPy arrays of a dtype."""
    known = can_be_stored(dtype) or jnp.issubdtype(dtype, jnp.complexfloating)
    return bool(known and dtype.isnative)


def _narrowed(treedef: Any, number: int, leaf: np.ndarray) -> np.ndarray:
    """Return a leaf in JAX's dtype; refuse it if a number of it is beyond that."""
    dtype = _own(treedef, number, leaf.dtype)
    if dtype == leaf.dtype:
        return leaf
    value = find_overflow(leaf, dtype)
    if value is None:
        return leaf.astype(dtype)
    raise ValueError(
        f"{_name(treedef, number)} holds {value}, and JAX {dtype}, which ends before: convert it, "
        "or set jax_enable_x64"
    )


def _name(treedef: Any, number: int) -> str:
    """Return where a leaf is, as a user would say it."""
    numbered = jax.tree.unflatten(treedef, range(treedef.num_leaves))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
    return packing.name_of(paths[number])


def _wide() -> bool:
    return jax.config.read("jax_enable_x64")
