"""Where transitions live: a lane-strided ring of packed rows.

With E environments, row r of the ring is the slots `r * E .. r * E + E - 1`, one per lane, so the
step before slot s in the same environment is slot `s - E` (modulo the capacity): walking an episode
is arithmetic. All fields of a row, whatever their dtypes, share one row of 32-bit words, so that
reading a batch is one gather.
"""

import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import struct

from jaxreplay import frames as frames_
from jaxreplay._internal import buffer
from jaxreplay._internal.arguments import check_leaf
from jaxreplay._internal.buffer import Buffer
from jaxreplay.frames import Frames, Spot
from jaxreplay.types import Array, Transition

_ITEM_SIZES = (8, 4, 2, 1)  # bytes, in the order of a row


class _Field(NamedTuple):
    """Where one leaf of a Transition lies in a packed row."""

    name: str  # path in the Transition, such as "extras.noise"
    start: int  # bytes from the beginning of the row
    shape: tuple[int, ...]  # of one row, unpacked
    dtype: str

    @property
    def stored(self) -> jnp.dtype:
        """What its bytes stand for; booleans are stored as one byte each."""
        return jnp.dtype("uint8" if self.dtype == "bool" else self.dtype)


class _Layout(NamedTuple):
    treedef: Any  # jax.tree_util.PyTreeDef
    fields: tuple[_Field, ...]
    words: int  # of 32 bits in a row


class Ring(struct.PyTreeNode):
    """Transitions in the order of their rows; the oldest row is overwritten first."""

    words: Buffer  # [C, W] uint32, the bits of all fields of a slot
    rows_added: Array  # [] int32, a clock: rows ever added, the write cursor is this modulo rows
    frames: Frames | tuple[()]  # where the frames of stacked observations are; (): none are
    pixels: Buffer | tuple[()]  # [.., D] these frames; (): none, or kept on the host
    layout: _Layout = struct.field(pytree_node=False)
    capacity: int = struct.field(pytree_node=False)  # C slots
    num_envs: int = struct.field(pytree_node=False)  # E lanes


def init(
    example: Transition,
    capacity: int,
    num_envs: int = 1,
    *,
    frame_stack: int = 0,
    frame_spare: float = 0.04,
    frames_on_host: bool = False,
) -> Ring:
    """Make an empty ring.

    Args:
      example: one unbatched transition (shapes and dtypes; the values do not matter).
      capacity: number of slots C, a multiple of `num_envs`.
      num_envs: number of lanes E.
      frame_stack: observations are stacks `[..., K]` of so many frames, each of which is stored
        once; 0: they are stored as they are.
      frame_spare: see `frames.init`.
      frames_on_host: the ring keeps no pixels; instead of observations it gives the rows `[B, K]`
        of the caller's that they are made of (`frames.Located`).

    Raises:
      ValueError: the capacity is not a positive multiple of the number of environments, or
        observations are not such stacks.
    """
    if num_envs < 1 or capacity < num_envs:
        raise ValueError(
            f"capacity is {capacity} with {num_envs} environments: use at least one slot for each"
        )
    if capacity % num_envs:
        less = capacity - capacity % num_envs
        raise ValueError(
            f"capacity {capacity} is not a multiple of the {num_envs} environments: "
            f"use {less} or {less + num_envs}"
        )
    frames = pixels = ()
    if frame_stack:
        frames = frames_.init(example.obs, capacity, num_envs, frame_stack, frame_spare)
        pixels = () if frames_on_host else cast(Buffer, frames_.empty_pixels(frames))
        example = example._replace(obs=Spot(*[jnp.zeros((), jnp.int32)] * 3), next_obs=())
    layout = _plan(example._replace(n_steps=()))
    words = jnp.zeros((capacity, layout.words), jnp.uint32)
    clock = jnp.zeros((), jnp.int32)
    return Ring(words, clock, frames, pixels, layout, capacity, num_envs)


def add(ring: Ring, transition: Transition) -> tuple[Ring, Array]:
    """Write one row of transitions `[E, ...]`; return ring and slots written, `[E]` int32.

    Raises:
      ValueError: as `check_fits`.
    """
    check_fits(ring, transition)
    slots = _cursor(ring) * ring.num_envs + jnp.arange(ring.num_envs, dtype=jnp.int32)
    if isinstance(ring.frames, Frames):
        ring, transition = _add_frames(ring, ring.frames, transition)
    words = buffer.write(ring.words, slots, _pack(ring, transition._replace(n_steps=())))
    return ring.replace(words=words, rows_added=ring.rows_added + 1), slots


def check_fits(ring: Ring, transition: Transition) -> None:
    """Refuse a row of transitions that the ring can't hold as it is; of stacks, frames check.

    Raises:
      ValueError: one line that names the field: it is missing or unknown, or has another number of
        rows, another shape, or a dtype that the ring's would not hold (1.7 as an integer).
    """
    if isinstance(ring.frames, Frames):
        places = [field for field in ring.layout.fields if not field.name.startswith("obs.")]
        transition = transition._replace(obs=(), next_obs=())
    else:
        places = ring.layout.fields
    leaves = jax.tree_util.tree_flatten_with_path(transition._replace(n_steps=()))[0]
    given = {_name(path): leaf for path, leaf in leaves}
    names = [field.name for field in places]
    for name in (*names, *given):
        if name not in given or name not in names:
            what = "lacks" if name in names else "has"
            raise ValueError(
                f"the transition {what} {name}, unlike the example that the ring was made for: "
                "give both the same fields"
            )
    for field in places:
        check_leaf(
            field.name, given[field.name], field.shape, jnp.dtype(field.dtype), ring.num_envs
        )


def end_episodes(ring: Ring) -> Ring:
    """Mark the newest row as the last of its episodes, for a loop that leaves them there."""
    slots = (_cursor(ring) - 1) % rows(ring) * ring.num_envs + jnp.arange(ring.num_envs)
    row = _unpack(ring, buffer.read(ring.words, slots))
    packed = _pack(ring, row._replace(last=jnp.broadcast_to(ring.rows_added > 0, slots.shape)))
    return ring.replace(words=buffer.write(ring.words, slots, packed))


def gather(ring: Ring, slots: Array) -> Transition:
    """Read the transitions of `slots` (`[B]` int32, in range): fields are `[B, ...]`."""
    read = _unpack(ring, buffer.read(ring.words, slots))
    frames, pixels = ring.frames, ring.pixels
    if isinstance(frames, tuple):
        return read
    located = frames_.locate(frames, slots, cast(Spot, read.obs))
    if isinstance(pixels, tuple):
        return read._replace(obs=located.obs, next_obs=located.next_obs)
    # One stack after the other: in one go, XLA takes longer to put their frames side by side.
    obs, next_obs = (frames_.assemble(frames, frames_.read(pixels, x)) for x in located)
    return read._replace(obs=obs, next_obs=next_obs)


def contents(ring: Ring) -> Transition:
    """Return all slots' transitions, `[C, ...]`, zero where never written.

    Under jit only the fields that are used are read. Of frames stored once there are no stacks:
    observations are then a `frames.Spot`.
    """
    return _unpack(ring, ring.words)


def rows(ring: Ring) -> int:
    """Return how many rows there are, with a slot for each lane."""
    return ring.capacity // ring.num_envs


def size(ring: Ring) -> Array:
    """Return the number of slots that hold a transition, `[]` int32: slots 0 .. size - 1."""
    return jnp.minimum(ring.rows_added, rows(ring)) * ring.num_envs


def even_probability(ring: Ring, slots: Array) -> Array:
    """Return the chance `[n]` float32 of each slot where all stored transitions are equally likely.

    Slots that were never written have none.
    """
    stored = size(ring)
    return jnp.where(slots < stored, 1.0 / jnp.maximum(stored, 1), 0.0)


def age(ring: Ring, slots: Array) -> Array:
    """Return how many rows `[B]` each slot lies behind the newest (0 for the newest)."""
    return (_cursor(ring) - 1 - slots // ring.num_envs) % rows(ring)


def ages(ring: Ring) -> Array:
    """Return the `age` of all slots, `[C]` int32, without a division for each."""
    row = jnp.arange(rows(ring))
    behind = _cursor(ring) - 1 - row
    by_row = jnp.where(behind < 0, behind + rows(ring), behind)
    return jnp.broadcast_to(by_row[:, None], (rows(ring), ring.num_envs)).ravel()


def version(ring: Ring, slots: Array) -> Array:
    """Return the value `[B]` of `rows_added` just after each slot was last written.

    It tells apart what a slot has held over time; slots never written have a version below 1.
    """
    return ring.rows_added - age(ring, slots)


def recent(ring: Ring, order: Array) -> Array:
    """Return the slots `[B]` of the `order[B]`-th newest transitions, the newest being number 0.

    Rows count from the newest back, lanes upwards within a row; `order` must be below the size.
    """
    row = (_cursor(ring) - 1 - order // ring.num_envs) % rows(ring)
    return row * ring.num_envs + order % ring.num_envs


def previous(ring: Ring, slots: Array, steps: int | Array = 1) -> tuple[Array, Array]:
    """Walk `steps` back in the same environment.

    Returns:
      The earlier slots `[B]` int32, and `[B]` bool whether the ring still has them: False where
      the walk would cross the write cursor. Episode edges are the caller's, who reads `first`.
    """
    earlier = (slots - steps * ring.num_envs) % ring.capacity
    stored = age(ring, slots) + steps < jnp.minimum(ring.rows_added, rows(ring))
    return earlier, stored


def check_valid(ring: Ring) -> None:
    """Check a concrete ring's invariants.

    Raises:
      ValueError: the clock is negative, or a slot that was never written is not zero.
    """
    if int(ring.rows_added) < 0:
        raise ValueError(f"rows_added is {int(ring.rows_added)}: it must not be negative")
    if ring.words[int(size(ring)) :].any():
        raise ValueError("a slot beyond the size holds something")


def _add_frames(ring: Ring, frames: Frames, transition: Transition) -> tuple[Ring, Transition]:
    """Store a row's frames; return the transitions with where they are instead."""
    t = transition
    obs, next_obs = cast(tuple[Array, Array], (t.obs, t.next_obs))
    frames, spot = frames_.add(frames, obs, t.first, t.n_steps)
    if not isinstance(ring.pixels, tuple):
        pixels = frames_.write(ring.pixels, frames, obs, next_obs, t.n_steps)
        ring = ring.replace(pixels=pixels)
    return ring.replace(frames=frames), t._replace(obs=spot, next_obs=())


def _cursor(ring: Ring) -> Array:
    return ring.rows_added % rows(ring)


def _plan(example: Transition) -> _Layout:
    """Give every leaf its place in a row: the widest dtypes first, each in whole words."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(example)
    fields = [
        _Field(_name(path), 0, jnp.shape(leaf), jnp.result_type(leaf).name) for path, leaf in leaves
    ]
    for field in fields:
        if not any(jnp.issubdtype(field.stored, kind) for kind in (jnp.floating, jnp.integer)):
            raise ValueError(
                f"{field.name} of dtype {field.dtype} can't be stored: convert it first"
            )
    end = 0
    for size in _ITEM_SIZES:
        for number, field in enumerate(fields):
            if field.stored.itemsize == size:
                fields[number] = field._replace(start=end)
                end += size * math.prod(field.shape)
        end = -(-end // 4) * 4
    return _Layout(treedef, tuple(fields), end // 4)


def _name(path: Any) -> str:
    """Return where a leaf is, as a user would say it."""
    return jax.tree_util.keystr(path).lstrip(".")


def _unpack(ring: Ring, rows: Array) -> Transition:
    """Turn words `[B, W]` into transitions `[B, ...]`."""
    leaves = []
    for field in ring.layout.fields:
        item, count = field.stored.itemsize, math.prod(field.shape)
        words = rows[:, field.start // 4 : -(-(field.start + item * count) // 4)]
        if item == 8:
            words = words.reshape(-1, count, 2)
        items = jax.lax.bitcast_convert_type(words, field.stored).reshape(rows.shape[0], -1)
        first = field.start % 4 // item
        values = items[:, first : first + count].astype(field.dtype)
        leaves.append(values.reshape(-1, *field.shape))
    return jax.tree.unflatten(ring.layout.treedef, leaves)


def _pack(ring: Ring, transition: Transition) -> Array:
    """Turn transitions `[E, ...]` into words `[E, W]`."""
    leaves = jax.tree.leaves(transition)
    parts: dict[int, list[Array]] = {size: [] for size in _ITEM_SIZES}
    for leaf, field in zip(leaves, ring.layout.fields, strict=True):
        unsigned = f"uint{8 * field.stored.itemsize}"
        items = jnp.asarray(leaf).reshape(ring.num_envs, -1).astype(field.stored)
        bits = jax.lax.bitcast_convert_type(items, unsigned)
        parts[field.stored.itemsize].append(bits)
    columns = [_words(jnp.concatenate(part, axis=1)) for part in parts.values() if part]
    return jnp.concatenate(columns, axis=1)


def _words(items: Array) -> Array:
    """Put unsigned integers `[E, n]` of any width side by side in words, the rest being zero."""
    rows, count = items.shape
    size = items.dtype.itemsize
    if size < 4:
        per_word = 4 // size
        items = jnp.pad(items, ((0, 0), (0, -count % per_word)))
        items = items.reshape(rows, -1, per_word)
    return jax.lax.bitcast_convert_type(items, jnp.uint32).reshape(rows, -1)
