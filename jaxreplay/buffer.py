"""Large arrays that a compiled loop reads and writes in place.

A ring buffer or a sum tree has a million rows, of which an iteration reads and writes a few dozen.
In JAX, every write creates a new array, and XLA decides whether to reuse the old array's memory.
XLA does so if every read of the old array provably precedes the write. Otherwise XLA copies the
whole array in every iteration, which takes a thousand times as long as writing a few dozen rows.
Copies have three causes:

* *A read on which the write does not depend.* XLA may schedule the read after the write, and then
  preserves the old array. Optimisation barriers do not help, as XLA on CPU removes barriers before
  it decides about copies. A dependence that XLA can't remove does help: `modify` makes a write
  depend on the read of its array, and `after`, or `fence` and `wait`, make all writes depend on
  all reads.
* *A write of a single row.* XLA turns the write into a slice update and fuses it with subsequent
  reads, which then need both the old and the new array. `write` always writes at least two rows.
* *A value computed from the old array* that every later operation recomputes. `once` prevents the
  recomputation.

XLA on accelerators orders a write after the reads of its array by itself, if later operations do
not repeat the reads. There, `settle` computes reads once, `after` is a barrier, and `wait` waits
for nothing.

Therefore all modules store such arrays as `Buffer`s and use the functions below. A `Buffer` is a
plain array: replay states remain pytrees of arrays, and the type only annotates a field.
`jaxreplay.testing.assert_in_place` detects copies in a compiled program.

This is the only module that uses `tuned`, the operations tuned for XLA on CPU. The results are the
same without `tuned`.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal.platforms import by_platform
from jaxreplay._internal.tracing import varying
from jaxreplay.types import Array

try:
    from jaxreplay._internal import tuned
except ImportError:  # the `tuned` folder is optional
    tuned: Any = None

Buffer: TypeAlias = Array  # [n, ...], read and written only by this module
Tree = TypeVar("Tree")


def read(buffer: Buffer, slots: Array) -> Array:
    """Return the rows `[B, ...]` at `slots` `[B]` int32, which must be in range."""
    if ops := _tuned():
        return ops.gather.take_rows(jnp.asarray(buffer), slots)
    return jnp.asarray(buffer).at[slots.astype(jnp.uint32)].get(mode="promise_in_bounds")


def read_own(buffer: Buffer, slots: Array) -> Array:
    """Return rows as `read` does, for `slots` that all vmapped buffers may share (see `_own`)."""
    return read(buffer, _own_on_tpu(buffer, slots.astype(jnp.uint32)))


def read_or(buffer: Buffer, slots: Array, missing: float | bool) -> Array:
    """Return the rows `[B, ...]` at `slots` `[B]`, filled with `missing` for slots out of range."""
    # Unsigned slots: a negative one would be counted from the end.
    slots = slots.astype(jnp.uint32)
    return jnp.asarray(buffer).at[slots].get(mode="fill", fill_value=missing)


def read_columns(buffer: Buffer, slots: Array, columns: range) -> Array:
    """Return the elements in `columns` of the rows at `slots` `[B]`, `[B, len(columns)]`.

    The buffer has shape `[n, W]`. `read` takes more time, because it reads all cache lines of a
    row.
    """
    rows = slots.astype(jnp.uint32)[:, None]
    words = jnp.asarray(buffer).at[rows, jnp.asarray(columns, jnp.uint32)]
    return words.get(mode="promise_in_bounds")


def write(
    buffer: Buffer, slots: Array, values: Array, how: Literal["set", "max"] = "set"
) -> Buffer:
    """Write `values` to `slots` of a buffer; slots out of range are skipped.

    Args:
      buffer: `[n, ...]`.
      slots: `[B]` int32; for duplicate slots, an arbitrary one of the values is written.
      values: `[B, ...]`, cast to the buffer's dtype.
      how: "set" replaces the old value of a slot; "max" stores the elementwise maximum of the old
        value and all new values of a slot.
    """
    write = _raise if how == "max" else _set
    values = _at_least_two(values).astype(buffer.dtype)
    return write(jnp.asarray(buffer), _at_least_two(slots).astype(jnp.uint32), values)


def add(buffer: Buffer, slots: Array, values: Array) -> Buffer:
    """Add `values` to the rows at `slots`; a repeated slot receives the sum of its values."""
    if len(slots) == 1:
        values = jnp.concatenate([values, jnp.zeros_like(values)])
    values = values.astype(buffer.dtype)
    return _add(jnp.asarray(buffer), _at_least_two(slots).astype(jnp.uint32), values)


def in_rows(values: Array) -> Buffer:
    """Arrange one number per slot, `[C]`, as a buffer `[R, 128]` with one element per slot.

    XLA on TPU writes elements of such buffers in place, also under `vmap`, but would copy buffers
    of shape `[C]`. The padding is 0.
    """
    rows = -(-values.size // 1024) * 8  # TPUs store tiles of 8 rows
    return jnp.pad(values, (0, rows * 128 - values.size)).reshape(rows, 128)


def of_slots(buffer: Buffer, capacity: int) -> Array:
    """Return the numbers `[C]` that `in_rows` arranged in a buffer, without the padding."""
    return buffer.ravel()[:capacity]


def read_elements(buffer: Buffer, slots: Array) -> Array:
    """Return the elements `[...]` at `slots` `[...]` of a buffer `[n, W]`, numbered row by row."""
    return _elements(jnp.asarray(buffer), slots.astype(jnp.uint32))


def write_elements(
    buffer: Buffer, slots: Array, values: Array, how: Literal["set", "max", "add"] = "set"
) -> Buffer:
    """Write elements of a buffer `[n, W]`, numbered row by row, as `write` and `add` write rows."""
    if how == "add" and len(slots) == 1:
        values = jnp.concatenate([values, jnp.zeros_like(values)])
    values = _at_least_two(values).astype(buffer.dtype)
    slots = _at_least_two(slots).astype(jnp.uint32)
    return _element_writes[how](jnp.asarray(buffer), slots, values)


def modify(buffer: Buffer, slots: Array, values: Array) -> tuple[Buffer, Array]:
    """Write rows as `write` does, and also return the old rows, with 0 for slots out of range.

    A test of the old rows for NaN makes the write depend on the read. Stored NaNs are not
    overwritten. For integers, read the rows, and write at `after(rows, slots)`.

    Raises:
      ValueError: If the buffer's dtype is not floating-point.
    """
    if not jnp.issubdtype(buffer.dtype, jnp.floating):
        raise ValueError(
            f"modify got a buffer of dtype {buffer.dtype}, expected floating-point: "
            "use read_or, and write at after(rows, slots)"
        )
    slots, values, count = _at_least_two(slots), _at_least_two(values), len(slots)
    before = read_or(buffer, slots, 0.0)
    return write(buffer, slots, jnp.where(jnp.isnan(before), before, values)), before[:count]


def once(values: Tree) -> Tree:
    """Return arrays, all of the same shape, unchanged; make XLA on CPU compute them only once."""
    ops = _tuned()
    return ops.once.once(values) if ops else values


def unrolled(key: Array) -> Array:
    """Convert keys to an implementation with the same random numbers but a faster hash on CPU.

    JAX hashes threefry2x32 keys in a loop of five small steps, and XLA on CPU runs the loop one
    operation at a time. This dominates the cost of a small training loop. An unrolled hash is a
    single operation and compiles faster. `jax.random` accepts the converted keys, and splitting
    preserves their type. A loop must carry either original or converted keys, because their dtypes
    differ.

    Args:
      key: `[...]` PRNG keys, typed or raw. Keys with implementations other than threefry2x32 are
        returned unchanged.
    """
    ops = _tuned()
    return ops.keys.unrolled(key) if ops else key


def product(x: Array, kernel: Array) -> Array:
    """Return `x @ kernel` for `[..., D]` and `[D, features]`; faster on CPU for small dimensions.

    Forward-mode differentiation is not supported.
    """
    ops = _tuned()
    return ops.linear.product(x, kernel) if ops else jnp.matmul(x, kernel)


def after(reads: Any, tree: Tree) -> Tree:
    """Make the arrays of a pytree available only after XLA has computed all of `reads`."""
    first, (leaves, treedef) = _plain(reads), jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, _after(first, leaves)) if first and leaves else tree


def fence(tree: Any, previous: Array | None = None) -> Array:
    """Return an int32 zero `[]`, which XLA on CPU computes only after every array of a pytree.

    States carry fences from function to function. On accelerators, fences are constants.

    Args:
      tree: pytree of arrays.
      previous: an earlier fence, after which XLA computes the result as well.
    """
    leaves = _plain(tree)
    zero = _zero(*leaves) if leaves else jnp.zeros((), jnp.int32)
    return zero if previous is None else previous + zero


def wait(fence: Array, tree: Tree) -> Tree:
    """Make the arrays of a pytree available only after a `fence`."""
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, _wait(fence, *leaves)) if leaves else tree


def settle(tree: Tree) -> Tree:
    """Return arrays unchanged; make XLA on accelerators compute all of them before any is used."""
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, _settle(*leaves)) if leaves else tree


def _plain(tree: Any) -> list[Array]:
    """Return the arrays of a pytree that have elements, and the data of PRNG keys."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [jax.random.key_data(x) if k else x for x, k in zip(leaves, keys, strict=True)]


def _own(buffer: Array, slots: Array) -> Array:
    """Return slots that depend on the buffer, so that `vmap` gives each buffer separate slots.

    If vmapped buffers shared their slots, a slot's rows in all buffers would be read or written
    together, and XLA on TPU would store the buffers in another order.
    """
    if not buffer.size:
        return slots
    first = jax.lax.slice(buffer, (0,) * buffer.ndim, (1,) * buffer.ndim).reshape(())
    first = first.astype(slots.dtype)
    return slots + (first > first).astype(slots.dtype)  # XLA removes comparisons of an integer


_own_on_tpu = by_platform(lambda buffer, slots: slots, tpu=_own)


def _scatter(how: Literal["set", "max", "add"]) -> Callable[[Array, Array, Array], Array]:
    """Return a function that writes values `[B, ...]` to slots `[B]` uint32 of a buffer."""

    def scatter(buffer: Array, slots: Array, values: Array) -> Array:
        return getattr(buffer.at[slots], how)(values, mode="drop")

    def scatter_own(buffer: Array, slots: Array, values: Array) -> Array:
        return scatter(buffer, _own(buffer, slots), values)

    return by_platform(scatter_own, cpu=scatter)


_set, _raise, _add = _scatter("set"), _scatter("max"), _scatter("add")


def _scatter_elements(how: Literal["set", "max", "add"]) -> Callable[[Array, Array, Array], Array]:
    """Return a function that writes values `[B]` to elements `[B]` uint32 of a buffer `[n, W]`."""
    scatter = _scatter(how)

    def flat(buffer: Array, slots: Array, values: Array) -> Array:
        return scatter(buffer.ravel(), slots, values).reshape(buffer.shape)

    def by_row(buffer: Array, slots: Array, values: Array) -> Array:
        at = buffer.at[jnp.divmod(_own(buffer, slots), np.uint32(buffer.shape[1]))]
        return getattr(at, how)(values, mode="drop")

    # XLA on TPU stores `[n, W]` and `[n * W]` differently, and XLA on GPU copies one to the other.
    return by_platform(by_row, cpu=flat)


_element_writes = {"set": _scatter_elements("set")}
_element_writes |= {"max": _scatter_elements("max"), "add": _scatter_elements("add")}


def _elements_of_flat(buffer: Array, slots: Array) -> Array:
    return read(buffer.ravel(), slots)


def _elements_by_row(buffer: Array, slots: Array) -> Array:
    at = buffer.at[jnp.divmod(slots, np.uint32(buffer.shape[1]))]
    return at.get(mode="promise_in_bounds")


_elements = by_platform(_elements_of_flat, tpu=_elements_by_row)


def _varying_by_platform(default: Callable[..., Any], cpu: Callable[..., Any]) -> Any:
    """Return `by_platform` of functions whose results all vary over the axes of a `shard_map`."""
    return by_platform(lambda *x: varying(default(*x)), cpu=lambda *x: varying(cpu(*x)))


def _zero_on_cpu(*leaves: Array) -> Array:
    firsts = [leaf.ravel()[0].astype(jnp.float32) for leaf in leaves]
    bits = jax.lax.bitcast_convert_type(sum(firsts), jnp.int32)
    return once((bits == 0x7FABCDEF).astype(jnp.int32))  # a NaN that arithmetic never produces


def _wait_on_cpu(fence: Array, *leaves: Array) -> list[Array]:
    def wait(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jnp.integer):
            return x + fence.astype(x.dtype)  # fewer operations than `jnp.where`
        # Zeros would not do: XLA removes a choice between equal constants.
        if jnp.issubdtype(x.dtype, jnp.inexact):
            other = jnp.full_like(x, jnp.finfo(x.dtype).min)
        else:
            other = ~x if x.dtype == bool else jnp.zeros_like(x)
        return jnp.where(fence == 0, x, other)

    return list(map(wait, leaves))


_zero = _varying_by_platform(lambda *leaves: jnp.zeros((), jnp.int32), cpu=_zero_on_cpu)
_wait = _varying_by_platform(lambda fence, *leaves: list(leaves), cpu=_wait_on_cpu)
_after = _varying_by_platform(
    lambda reads, leaves: jax.lax.optimization_barrier((reads, leaves))[1],
    cpu=lambda reads, leaves: _wait_on_cpu(_zero_on_cpu(*reads), *leaves),
)
_settle = _varying_by_platform(
    lambda *leaves: jax.lax.optimization_barrier(leaves), cpu=lambda *leaves: leaves
)


def _tuned() -> Any:
    """Return the operations tuned for XLA on CPU, or None.

    The result is None if they are missing, disabled or not tested with this version of JAX.
    """
    return None if tuned is None else tuned.load()


def _at_least_two(rows: Array) -> Array:
    return jnp.repeat(rows, 2, axis=0) if rows.shape[0] == 1 else rows
