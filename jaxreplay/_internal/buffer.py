"""Large arrays that a compiled loop reads and writes in place.

A ring or a tree has a million rows, of which an iteration reads and writes a few dozen. In JAX
every write makes a new array; XLA decides whether it reuses the memory of the old one. It does so
if every read of the old array is certain to precede the write. Otherwise it copies the whole array
in every iteration, which takes a thousand times as long. There are three causes of copies:

* *A read on which the write does not depend.* XLA may schedule it after the write, and so keeps the
  old array. Optimisation barriers do not help on CPU, where XLA removes them before it decides
  about copies. What helps is a dependence that XLA can't remove: `modify` makes the write of one
  array depend on its read, `fence` and `after` make the writes of an iteration depend on all reads.
* *A write of a single row.* XLA makes it an update of a slice and fuses it with the reads that
  follow, which then need both arrays. `write` writes at least two rows.
* *A value that every consumer recomputes* from the old array: `once`.

So all modules keep such arrays as `Buffer`s and use the functions below. A Buffer is a plain array:
states stay pytrees of arrays, and the type only marks the field.
`jaxreplay.testing.assert_in_place` finds the copies in a compiled program.

This is the only module that uses `tuned`, the operations that are written for XLA on CPU. Without
them everything gives the same numbers.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from jaxreplay.types import Array

try:
    from jaxreplay._internal import tuned
except ImportError:  # the folder may be deleted
    tuned: Any = None

Buffer: TypeAlias = Array  # [n, ...], an array that is read and written by this module only
Carry = TypeVar("Carry")
Tree = TypeVar("Tree")


def read(buffer: Buffer, slots: Array) -> Array:
    """Return rows `[B, ...]`; `slots` `[B]` int32 are in range."""
    if _is_tuned():
        return tuned.gather.take_rows(jnp.asarray(buffer), slots)
    return _take(buffer, slots)


def read_or(buffer: Buffer, slots: Array, missing: float | bool) -> Array:
    """Return rows `[B, ...]`, and `missing` for slots that are out of range."""
    return jnp.asarray(buffer).at[slots].get(mode="fill", fill_value=missing)


def read_few(buffer: Buffer, slots: Array) -> Array:
    """Return rows as `read` does; faster for a few short rows of a large array."""
    if _is_tuned():
        buffer = jnp.asarray(buffer)
        scratch = tuned.gather.scratch_for(buffer, slots.size)
        return tuned.gather.take_few_rows(scratch, buffer, slots)[0]
    return _take(buffer, slots)


def walk(
    buffer: Buffer,
    turns: int,
    where: Callable[[int, Carry], Array],
    step: Callable[[int, Carry, Array], Carry],
    carry: Carry,
) -> Carry:
    """Return the carry after `turns` steps, each of which reads a few rows chosen by the last one.

    The steps are unrolled: a loop takes twice as many operations, half of which copy the carry.

    Args:
      buffer: `[n, ...]`.
      turns: number of steps.
      where: `(turn, carry) -> slots[B]`, int32 in range.
      step: `(turn, carry, rows[B, ...]) -> carry`.
      carry: arrays of one shape.
    """
    if not _is_tuned():
        for turn in range(turns):
            carry = step(turn, carry, _take(buffer, where(turn, carry)))
        return carry
    if not turns:
        return carry
    buffer = jnp.asarray(buffer)
    scratch = tuned.gather.scratch_for(
        buffer, jax.eval_shape(lambda carry: where(0, carry), carry).size
    )
    for turn in range(turns):
        rows, scratch = tuned.gather.take_few_rows(scratch, buffer, where(turn, carry))
        # Otherwise the steps become one fusion, which recomputes the ancestors of every step.
        carry = once(step(turn, carry, rows))
    return carry


def write(
    buffer: Buffer, slots: Array, values: Array, how: Literal["set", "max"] = "set"
) -> Buffer:
    """Return the buffer with other rows; slots that are out of range are skipped.

    Args:
      buffer: `[n, ...]`.
      slots: `[B]` int32; of equal slots, one of their values is kept.
      values: `[B, ...]`, cast to the buffer's dtype.
      how: "max" keeps the larger of the old and the new values; of equal slots, the largest.
    """
    at = jnp.asarray(buffer).at[_at_least_two(slots).astype(jnp.uint32)]
    values = _at_least_two(values).astype(buffer.dtype)
    return (at.max if how == "max" else at.set)(values, mode="drop")


def add(buffer: Buffer, slots: Array, values: Array) -> Buffer:
    """Return the buffer with `values` added to its rows; the values of equal slots add up."""
    if len(slots) == 1:
        values = jnp.concatenate([values, jnp.zeros_like(values)])
    at = jnp.asarray(buffer).at[_at_least_two(slots).astype(jnp.uint32)]
    return at.add(values.astype(buffer.dtype), mode="drop")


def modify(buffer: Buffer, slots: Array, values: Array) -> tuple[Buffer, Array]:
    """Write rows as `write` does; return also the old rows, 0 for slots that are out of range.

    A comparison makes the write depend on the read. It keeps rows that hold NaN.

    Raises:
      ValueError: the buffer does not hold floating-point numbers.
    """
    if not jnp.issubdtype(buffer.dtype, jnp.floating):
        raise ValueError(f"buffer has dtype {buffer.dtype}: modify takes floating-point numbers")
    slots, values, count = _at_least_two(slots), _at_least_two(values), len(slots)
    before = read_or(buffer, slots, 0.0)
    return write(buffer, slots, jnp.where(jnp.isnan(before), before, values)), before[:count]


def once(values: Tree) -> Tree:
    """Return arrays of one shape that XLA computes once, however many consumers they have."""
    return tuned.once.once(values) if _is_tuned() else values


def single_threaded(values: Array, numbers: Array) -> Array:
    """Return a small array `[n, ...]` that is computed in one thread, although it reads much.

    Args:
      values: at most 64 KB, or it has no effect; used in more than one way.
      numbers: `[B]` int32, not negative, that are known before, such as the slots that are read.
    """
    return tuned.gather.in_one_thread(values, numbers) if _is_tuned() else values


def single_threaded_pair(high: Array, low: Array, bits: int, numbers: Array) -> tuple[Array, Array]:
    """Return two results `[n]` of one computation in one thread, which XLA would repeat for each.

    Args:
      high: int32, not negative, below 2^(32 - bits).
      low: int32, of this many bits including its sign.
      bits: between 1 and 31.
      numbers: as for `single_threaded`.
    """
    mask, shift = jnp.int32(2**bits - 1), jnp.int32(bits)
    both = single_threaded(high.astype(jnp.int32) << shift | low.astype(jnp.int32) & mask, numbers)
    rest = jnp.int32(32 - bits)
    return jax.lax.shift_right_logical(both, shift), both << rest >> rest


def unrolled(key: Array) -> Array:
    """Return keys with the same random numbers, which XLA on CPU hashes faster in compiled loops.

    JAX hashes threefry2x32 keys in a loop of five small steps, and XLA on CPU runs the loop one
    operation at a time: that is most of the work of a small training loop. Unrolled, every hash is
    one operation, and compiles faster. `jax.random` accepts the new keys, and keys split from them
    are of their kind. Their dtype differs from that of the given keys: carry either in a loop.

    Args:
      key: `[...]` PRNG keys, typed or raw. Keys of another kind, and keys on other devices, are
        returned unchanged.
    """
    return tuned.keys.unrolled(key) if _is_tuned() else key


def product(x: Array, kernel: Array) -> Array:
    """Return `x @ kernel` for `[..., D]` and `[D, features]`; faster on CPU for small dimensions.

    It has no forward-mode derivative.
    """
    return tuned.linear.product(x, kernel) if _is_tuned() else jnp.matmul(x, kernel)


def fence(tree: Any) -> Array:
    """Return an int32 0, `[]`, that is available only after every array of a pytree."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
    if not leaves:
        return jnp.zeros((), jnp.int32)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    leaves = [jax.random.key_data(x) if k else x for x, k in zip(leaves, keys, strict=True)]
    firsts = [leaf.ravel()[0].astype(jnp.float32) for leaf in leaves]
    bits = jax.lax.bitcast_convert_type(sum(firsts), jnp.int32)
    return once((bits == 0x7FABCDEF).astype(jnp.int32))  # a NaN that no arithmetic makes


def after(fence: Array, tree: Tree) -> Tree:
    """Return a pytree of arrays that are available only after a fence."""

    def wait(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jnp.integer):
            return x + fence.astype(x.dtype)  # fewer operations than the choice below
        return jnp.where(fence == 0, x, jnp.zeros_like(x))

    return jax.tree.map(wait, tree)


def settled(tree: Tree) -> Tree:
    """Return a pytree behind an optimisation barrier, which XLA honours on accelerators."""
    return jax.lax.optimization_barrier(tree)


def _take(buffer: Buffer, slots: Array) -> Array:
    return jnp.asarray(buffer).at[slots.astype(jnp.uint32)].get(mode="promise_in_bounds")


def _is_tuned() -> bool:
    return tuned is not None and tuned.is_enabled()


def _at_least_two(rows: Array) -> Array:
    return jnp.repeat(rows, 2, axis=0) if rows.shape[0] == 1 else rows
