"""Pytrees packed into few arrays, for calls of compiled functions from Python.

Every array adds to the time of a call: on CPU, a microsecond for each result and two microseconds
for each NumPy argument. For a replay state, a batch and a transition, this exceeds the time to add,
sample and update. A packed pytree consists of one array of 32-bit words, which holds all small
arrays, and the large arrays.

Pack the arguments of a compiled function and unpack them inside it, and the reverse for its
results. Packing has no benefit inside a compiled loop.
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

_LARGE = 2**15  # array size in bytes above which passing an array is faster than copying it
_SHAPE_AND_DTYPE = operator.attrgetter("shape", "dtype")


class _Plan(NamedTuple):
    """The storage of each leaf of a packed pytree."""

    treedef: Any  # jax.tree_util.PyTreeDef of the original pytree
    apart: tuple[bool, ...]  # [leaves], whether a leaf remains a separate array
    kinds: tuple[Any, ...]  # [leaves], the PRNG implementation of keys, or None for other leaves
    layout: Layout | None  # layout of the words, or None if all leaves are separate arrays
    record: np.dtype | None  # `layout` as a structured NumPy dtype
    names: tuple[str, ...]  # [leaves], the leaf's field name in the record, or ""


class Packed:
    """A pytree packed into few arrays, which is itself a pytree and may be donated.

    JAX would take several times as long to flatten a registered dataclass.
    """

    __slots__ = ("arrays", "plan")

    def __init__(self, arrays: tuple[Any, ...], plan: _Plan) -> None:
        """Use `pack` instead."""
        self.arrays = arrays  # words [W] uint32 with the bits of all small leaves, then the others
        self.plan = plan


jax.tree_util.register_pytree_node(
    Packed, operator.attrgetter("arrays", "plan"), lambda plan, arrays: Packed(arrays, plan)
)


def pack(tree: Tree) -> Packed:
    """Pack a pytree into few arrays.

    A pytree of NumPy arrays and numbers, such as transitions from environments on the host, is
    packed on the host; pack other pytrees inside a compiled function. Arrays of 32 KB or more and
    dtypes without a 32-bit representation, such as complex numbers, are not copied. Copy these
    arrays if the environment reuses them, because JAX may read them after the call has returned.

    Args:
      tree: pytree of arrays, which may include PRNG keys.

    Raises:
      ValueError: If JAX can't represent a leaf on the host: text, an object, a non-native byte
        order, or numbers beyond 32 bits (64 with `jax_enable_x64`). The message names the leaf.
    """
    leaves, treedef = jax.tree.flatten(tree)
    # This check runs in every call, and isinstance(leaf, jax.Array) would be slower.
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


@functools.partial(jax.jit, inline=True)
def unpack(packed: Packed) -> Tree:
    """Unpack the exact original pytree on the device; call `unpack` in a compiled function.

    Leaves packed on the host are returned in JAX's dtypes.
    """
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


def as_numpy(packed: Packed) -> Tree:
    """Unpack the original pytree as NumPy arrays, for learners without JAX.

    On CPU, the arrays are read-only views of JAX's memory. PRNG keys are returned as uint32 words.
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


def _packed(plan: _Plan, leaves: list[Any], words: Any) -> Packed:
    return Packed((words, *itertools.compress(leaves, plan.apart)), plan)


@functools.cache
def _host_plan(
    treedef: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...], wide: bool
) -> tuple[_Plan, tuple[int, ...]]:
    """Return the plan for NumPy arrays, and the indices of leaves wider than in JAX."""
    dtypes = enumerate(dtype for _, dtype in leaves)
    wider = tuple(number for number, dtype in dtypes if _own(treedef, number, dtype) != dtype)
    return _plan(treedef, leaves, wide), wider


@functools.cache
def _plan(treedef: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...], wide: bool) -> _Plan:
    """Return the plan for leaves with the given shapes and dtypes.

    Pytrees with equal structure, shapes and dtypes share one plan, because JAX compares plans in
    every call.
    """
    del wide  # part of the cache key, because plans depend on `jax_enable_x64`
    stored = [_words_of(shape, dtype) for shape, dtype in leaves]
    kinds, apart = tuple(kind for _, kind in stored), tuple(words is None for words, _ in stored)
    small = [words for words, _ in stored if words is not None]
    names = tuple("" if alone else f"leaf {number}" for number, alone in enumerate(apart))
    if not small:
        return _Plan(treedef, apart, kinds, None, None, names)
    layout = packing.plan(small)
    record = np.dtype(
        {
            "names": list(filter(None, names)),
            "formats": [(np.dtype(field.dtype), field.shape) for field in layout.fields],
            "offsets": [field.start for field in layout.fields],
            "itemsize": 4 * layout.words,
        }
    )
    return _Plan(treedef, apart, kinds, layout, record, names)


def _words_of(shape: tuple[int, ...], dtype: Any) -> tuple[jax.ShapeDtypeStruct | None, Any]:
    """Return a leaf's stored shape and dtype, or None if separate, and its PRNG implementation."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        kinds = []

        def data() -> Array:
            keys = jnp.zeros(shape, dtype)
            kinds.append(jax.random.key_impl(keys))
            return jax.random.key_data(keys)

        leaf, kind = jax.eval_shape(data), kinds
    else:
        leaf, kind = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype)), [None]
    if can_be_stored(leaf.dtype) and 0 < math.prod(leaf.shape) * leaf.dtype.itemsize < _LARGE:
        return leaf, kind[0]
    return None, None


def _own(treedef: Any, number: int, dtype: np.dtype) -> np.dtype:
    """Return JAX's dtype for a leaf on the host; raise ValueError if JAX does not support it."""
    known = can_be_stored(dtype) or jnp.issubdtype(dtype, jnp.complexfloating)
    if known and dtype.isnative:
        return jax.dtypes.canonicalize_dtype(dtype)
    why = "which JAX does not support: convert or remove the field"
    if not dtype.isnative:
        why = "which has a non-native byte order: convert it with astype"
    raise ValueError(f"{_name(treedef, number)} has dtype {dtype}, {why}")


def _narrowed(treedef: Any, number: int, leaf: np.ndarray) -> np.ndarray:
    """Cast a leaf to JAX's dtype; raise ValueError if a number overflows."""
    dtype = _own(treedef, number, leaf.dtype)
    if dtype == leaf.dtype:
        return leaf
    value = find_overflow(leaf, dtype)
    if value is None:
        return leaf.astype(dtype)
    raise ValueError(
        f"{_name(treedef, number)} contains {value}, which {dtype} can't represent: convert it, or "
        "set jax_enable_x64"
    )


def _name(treedef: Any, number: int) -> str:
    """Return the name of the leaf with index `number`."""
    numbered = jax.tree.unflatten(treedef, range(treedef.num_leaves))
    return packing.name_of(jax.tree_util.tree_leaves_with_path(numbered)[number][0])


def _wide() -> bool:
    return jax.config.read("jax_enable_x64")
