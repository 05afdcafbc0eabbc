"""Large arrays that a compiled loop reads and writes in place.

A replay's arrays have a million rows, of which a step reads and writes a few dozen. To JAX every
write makes a new array; only XLA decides whether it lies where the old one did. It does so if every
read of the old array is certain to come before the write. Otherwise it copies the whole array in
every step, which takes a thousand times as long as the step itself. Three things go wrong:

* *A read on whose result the write does not depend.* XLA may read after it writes, and so keeps
  the old array. Optimisation barriers don't help: on CPU they are dropped before copies are
  decided. What helps is that what is written, or where, depends on what was read: `modify` sees to
  it for one array, `fence` and `after` for all that a step reads before the next one writes.
* *A write of a single row.* XLA fuses it with the reads that follow, which then see both arrays.
  `write` never writes fewer than two rows.
* *A number that each consumer computes anew*, from the array as it was: `once`.

So ring, tree and replay methods keep such arrays as `Buffer`s and go through this module; what they
read before they write needs no thought then. A Buffer is a plain array, so that states remain
pytrees of arrays and whole-array arithmetic needs no wrapping: the name marks the field. The
tests read compiled loops for copies, in both loop orders, alone and vmapped
(`tests/contract/test_no_copies.py`).
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from jaxreplay._internal.xla.dependence import at_least_two, computed_once, opaque_zero
from jaxreplay._internal.xla.gather import in_one_thread, scratch_for, take_few_rows, take_rows
from jaxreplay.types import Array

Buffer: TypeAlias = Array  # [n, ...], an array whose rows are read and written here only
Carry = TypeVar("Carry")
Tree = TypeVar("Tree")


def read(buffer: Buffer, slots: Array) -> Array:
    """Read rows: `[B]` int32, all in range -> `[B, ...]`."""
    return take_rows(jnp.asarray(buffer), slots)


def read_or(buffer: Buffer, slots: Array, missing: float | bool) -> Array:
    """Read rows, and `missing` for slots beyond the end: `[B]` int32 -> `[B, ...]`."""
    return jnp.asarray(buffer).at[slots].get(mode="fill", fill_value=missing)


def read_few(buffer: Buffer, slots: Array) -> Array:
    """Read as `read` does, a few short rows of a large array, in one thread."""
    buffer = jnp.asarray(buffer)
    return take_few_rows(scratch_for(buffer, slots.size), buffer, slots)[0]


def walk(
    buffer: Buffer,
    turns: int,
    where: Callable[[int, Carry], Array],
    step: Callable[[int, Carry, Array], Carry],
    carry: Carry,
) -> Carry:
    """Read a few rows in every turn, chosen by what the turns before found.

    Written out: a loop takes twice as many operations, half of which copy what it carries.

    Args:
      buffer: `[n, ...]`.
      turns: how many.
      where: `(turn, carry) -> slots[B]`, int32 in range.
      step: `(turn, carry, rows[B, ...]) -> carry`.
      carry: arrays of one shape that go from turn to turn.
    """
    if not turns:
        return carry
    buffer = jnp.asarray(buffer)
    scratch = scratch_for(buffer, jax.eval_shape(lambda carry: where(0, carry), carry).size)
    for turn in range(turns):
        rows, scratch = take_few_rows(scratch, buffer, where(turn, carry))
        # Else the turns become one fusion, which computes each one's ancestors again.
        carry = computed_once(step(turn, carry, rows))
    return carry


def write(
    buffer: Buffer, slots: Array, values: Array, how: Literal["set", "max"] = "set"
) -> Buffer:
    """Write rows; those whose slot is out of range are skipped.

    Args:
      buffer: `[n, ...]`.
      slots: `[B]` int32; where one occurs twice, one of its values is kept.
      values: `[B, ...]`, brought to the buffer's dtype: they are doubles where JAX is told so.
      how: "max" keeps what is there if it is larger; of several values the largest counts.
    """
    at = jnp.asarray(buffer).at[at_least_two(slots).astype(jnp.uint32)]
    values = at_least_two(values).astype(buffer.dtype)
    return (at.max if how == "max" else at.set)(values, mode="drop")


def add(buffer: Buffer, slots: Array, values: Array) -> Buffer:
    """Add to rows; of a slot that occurs more than once, every value counts. Else like `write`."""
    if len(slots) == 1:
        values = jnp.concatenate([values, jnp.zeros_like(values)])
    at = jnp.asarray(buffer).at[at_least_two(slots).astype(jnp.uint32)]
    return at.add(values.astype(buffer.dtype), mode="drop")


def modify(buffer: Buffer, slots: Array, values: Array) -> tuple[Buffer, Array]:
    """Write rows of float32 as `write` does; return also what was there, 0 beyond the end.

    The comparison makes the write follow the read. A row that holds NaN would keep it.

    Raises:
      ValueError: the buffer does not hold floating-point numbers.
    """
    if not jnp.issubdtype(buffer.dtype, jnp.floating):
        raise ValueError(f"modify is for floating-point numbers, not {buffer.dtype}")
    slots, values, count = at_least_two(slots), at_least_two(values), len(slots)
    before = read_or(buffer, slots, 0.0)
    return write(buffer, slots, jnp.where(jnp.isnan(before), before, values)), before[:count]


def once(values: Tree) -> Tree:
    """Return arrays of one shape, computed once and together, however many consumers they have."""
    return computed_once(values)


def briefly(values: Array, numbers: Array) -> Array:
    """Return a small array `[n, ...]`, computed in one thread although it comes of much reading.

    Args:
      values: of 64 KB at most, or nothing is done about it; used in more than one way.
      numbers: `[B]` int32, not negative, that are known before: such as the slots that were read.
    """
    return in_one_thread(values, numbers)


def briefly_both(high: Array, low: Array, bits: int, numbers: Array) -> tuple[Array, Array]:
    """Return two results `[n]` of one computation `briefly`, which XLA would do for each of them.

    Args:
      high: int32, not negative, in as many of its 32 bits as are left.
      low: int32, in so many bits with its sign.
      bits: how many, between 1 and 31.
      numbers: as those of `briefly`.
    """
    mask, shift = jnp.int32(2**bits - 1), jnp.int32(bits)
    both = briefly(high.astype(jnp.int32) << shift | low.astype(jnp.int32) & mask, numbers)
    rest = jnp.int32(32 - bits)
    return jax.lax.shift_right_logical(both, shift), both << rest >> rest


def fence(tree: Any) -> Array:
    """Return an int32 0, `[]`, that is known only once every array of a pytree is."""
    return opaque_zero(tree)


def after(fence: Array, tree: Tree) -> Tree:
    """Return a pytree of arrays that are known only once a fence is."""

    def behind(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jnp.integer):
            return x + fence.astype(x.dtype)  # fewer operations than the choice below
        return jnp.where(fence == 0, x, jnp.zeros_like(x))

    return jax.tree.map(behind, tree)


def settled(tree: Tree) -> Tree:
    """Return a pytree, all of which is computed before any of it is used.

    This is what accelerators heed; see above for CPUs.
    """
    return jax.lax.optimization_barrier(tree)
