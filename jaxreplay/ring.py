"""Ring buffer for transitions, interleaved by environment.

With E environments, step t occupies slots `t * E .. t * E + E - 1`, one for each environment. The
step before slot s in the same environment is therefore in slot `s - E` (modulo the capacity). All
fields of a transition, regardless of dtype, are packed into one row of 32-bit words, so reading a
batch is a single gather. A transition may be a `Transition` or any other pytree of arrays; reads
preserve its type.
"""

import abc
import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from jaxreplay import buffer, counters, devices
from jaxreplay._internal import packing
from jaxreplay._internal.arguments import check_size, slots_within
from jaxreplay._internal.packing import Layout
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.buffer import Buffer
from jaxreplay.types import Array, Transition, Tree, get_field, has_field, replace_fields


class Ring(struct.PyTreeNode):
    """State of a ring buffer, which overwrites the oldest transitions first.

    A storage format that stores part of a transition outside the packed array `words` defines a
    subclass, which adds arrays and overrides the methods. The functions of this module accept every
    subclass.
    """

    words: Buffer  # [C, W] uint32, the bits of all fields in W words per slot
    steps_added: Array  # [] int32, step counter, incremented by every add. Modulo `num_steps`, it
    # is the step to overwrite. After 2^31 - 1, it rewinds by a multiple of `num_steps`.
    layout: Layout = struct.field(pytree_node=False)  # layout of the fields in `words`
    capacity: int = struct.field(pytree_node=False)  # number of slots C
    num_envs: int = struct.field(pytree_node=False)  # number of environments E
    axis_name: str | None = struct.field(pytree_node=False, kw_only=True, default=None)  # mesh axis
    # over which the replay is divided, if this is the part of one device

    def as_stored(self, transition: Tree, lead: tuple[int, ...] = ()) -> Tree:
        """Return new transitions in the dtypes of the ring buffer.

        Args:
          transition: `[E, ...]`, or a rollout `[T, E, ...]`.
          lead: leading axes, `(T, E)` for a rollout; () means `(E,)`.

        Raises:
          ValueError: If a field is missing or unknown, its shape does not match the example, or its
            dtype cannot be cast to the dtype in the example without loss, such as float to int.
        """
        packing.check_fits(self.layout, as_row(transition), lead or (self.num_envs,))
        return packing.as_stored(self.layout, transition)

    def store_outside(self, transition: Tree, slots: Array) -> tuple["Ring", Tree]:
        """Store fields of transitions `[E, ...]` outside `words`.

        Args:
          transition: `[E, ...]`, the transitions that will be written to `slots`.
          slots: `[E]` int32.

        Returns:
          The new ring buffer, and transitions `[E, ...]` with the fields that belong in `words`.
        """
        del slots
        return self, transition

    def read_outside(self, row: Tree, slots: Array) -> Tree:
        """Return transitions `[B, ...]`, given their fields in `words` and their slots `[B]`."""
        del slots
        return row

    def metrics(self) -> dict[str, Array]:
        """Return scalar float32 metrics of the fields outside `words`."""
        return {}


class Storage(abc.ABC):
    """Base class for storage formats: frozen dataclasses with the function `init`."""

    @abc.abstractmethod
    def init(self, example: Tree, capacity: int, num_envs: int) -> Ring:
        """Return an empty ring buffer, given arguments that are valid for `ring.init`."""


@dataclasses.dataclass(frozen=True)
class Transitions(Storage):
    """Stores every transition with both `obs` and `next_obs`."""

    def init(self, example: Tree, capacity: int, num_envs: int) -> Ring:
        return Ring(*empty_words(example, capacity), capacity, num_envs)


def init(example: Tree, capacity: int, num_envs: int = 1, storage: Storage = Transitions()) -> Ring:
    """Return an empty ring buffer.

    Args:
      example: one transition without a batch axis. It defines the structure, shapes and dtypes.
      capacity: number of slots C, a multiple of `num_envs`.
      num_envs: number of environments E.
      storage: storage format for observations.

    Raises:
      ValueError: If `capacity` is not a positive multiple of `num_envs`, or `storage` does not
        support the example.
    """
    check_sizes(capacity, num_envs)
    return storage.init(example, capacity, num_envs)


def check_sizes(capacity: int, num_envs: int) -> None:
    """Raise ValueError unless `capacity` is a positive multiple of a positive `num_envs`."""
    check_size("num_envs", num_envs)
    check_size("capacity", capacity)
    if capacity % num_envs:
        less = capacity - capacity % num_envs
        sizes = f"{less} or {less + num_envs}" if less else num_envs
        raise ValueError(
            f"capacity must be a multiple of num_envs {num_envs}, got {capacity}: use {sizes}"
        )


def empty_words(example: Tree, capacity: int) -> tuple[Buffer, Array, Layout]:
    """Return the first three fields of an empty `Ring` that packs transitions like `example`."""
    layout = packing.plan(as_row(example))
    words = jnp.zeros((capacity, layout.words), jnp.uint32)
    return words, jnp.zeros((), jnp.int32), layout


def as_row(transition: Tree) -> Tree:
    """Remove the field `n_steps` of a `Transition`, because it is not stored."""
    return transition._replace(n_steps=None) if isinstance(transition, Transition) else transition


@with_default_promotion
def add(ring: Ring, transition: Tree) -> tuple[Ring, Array]:
    """Write transitions `[E, ...]` to the oldest slots; return the new ring and the slots `[E]`.

    Raises:
      ValueError: If the transitions do not match the example, see `Ring.as_stored`.
    """
    return write(ring, jax.lax.stop_gradient(ring.as_stored(transition)))


def write(ring: Ring, transition: Tree) -> tuple[Ring, Array]:
    """Write transitions as `add` does, without checking shapes or stopping gradients."""
    slots = _cursor(ring) * ring.num_envs + jnp.arange(ring.num_envs, dtype=jnp.int32)
    ring, row = ring.store_outside(transition, slots)
    packed = packing.pack(ring.layout, as_row(row), ring.num_envs)
    words = buffer.write(ring.words, slots, packed)
    later = counters.increment(ring.steps_added, counters.rewind(num_steps(ring)))
    return ring.replace(words=words, steps_added=later), slots


def end_episodes(ring: Ring) -> Ring:
    """Set `last` in every environment's newest transition, and return the new ring buffer.

    Raises:
      ValueError: If transitions have no field `last`.
    """
    slots = (_cursor(ring) - 1) % num_steps(ring) * ring.num_envs + jnp.arange(ring.num_envs)
    row = packing.unpack(ring.layout, buffer.read(ring.words, slots))
    if not has_field(row, "last"):
        raise ValueError("transitions must have a field `last`: add it to the example")
    last = jnp.broadcast_to(ring.steps_added > 0, slots.shape)
    packed = packing.pack(ring.layout, replace_fields(row, last=last), ring.num_envs)
    return ring.replace(words=buffer.write(ring.words, slots, packed))


@with_default_promotion
def gather(ring: Ring, slots: Array) -> Tree:
    """Return the transitions in slots `[B]` or `[B, T]` int32, in [0, capacity)."""
    slots = slots_within(slots, ring.capacity)
    if slots.ndim > 1:
        flat = gather(ring, slots.ravel())
        return jax.tree.map(lambda x: x.reshape(*slots.shape, *x.shape[1:]), flat)
    row = packing.unpack(ring.layout, buffer.settle(buffer.read_own(ring.words, slots)))
    return ring.read_outside(row, slots)


@with_default_promotion
def gather_part(ring: Ring, slots: Array, name: str, part: range) -> Array:
    """Return elements `part` of the flat field `name` in slots `[B]` int32, `[B, len(part)]`.

    The field has shape `[C, D]`. If it is stored as 32-bit numbers in `words`, only these elements
    are read. Otherwise, whole transitions are read, as in `gather`.
    """
    slots = slots_within(slots, ring.capacity)
    for field in ring.layout.fields:
        if field.name == name and field.stored.itemsize == 4:
            start = field.start // 4
            columns = range(start + part.start, start + part.stop)
            words = buffer.read_columns(ring.words, slots, columns)
            return jax.lax.bitcast_convert_type(words, field.stored)
    return get_field(gather(ring, slots), name)[:, part.start : part.stop]


def contents(ring: Ring) -> Tree:
    """Return the transitions of all slots, `[C, ...]`, with zeros in empty slots.

    Under `jit`, only fields that are used are read. In a storage format that stores each
    observation once, observations are returned as positions (`frames.Spot`).
    """
    return packing.unpack(ring.layout, ring.words)


def num_steps(ring: Ring) -> int:
    """Return the maximum number of steps in the ring buffer, `capacity / num_envs`."""
    return ring.capacity // ring.num_envs


def size(ring: Ring) -> Array:
    """Return the number of non-empty slots, `[]` int32. These are slots 0 .. size - 1."""
    return jnp.minimum(ring.steps_added, num_steps(ring)) * ring.num_envs


def even_probability(ring: Ring, slots: Array) -> Array:
    """Return uniform sampling probabilities of slots, `[n]` float32, with 0 for empty slots."""
    _check_unbatched(ring)
    stored = size(ring)
    share = 1.0 / jnp.maximum(stored, 1).astype(jnp.float32)
    return devices.share(jnp.where(slots < stored, share, 0.0), ring.axis_name)


def age(ring: Ring, slots: Array) -> Array:
    """Return the age of slots in steps, `[B]` int32. The newest transitions have age 0."""
    return _behind(ring, slots_within(slots, ring.capacity) // ring.num_envs)


def ages(ring: Ring) -> Array:
    """Return the `age` of all slots, `[C]` int32, without a division per slot."""
    by_row = _behind(ring, jnp.arange(num_steps(ring)))
    return jnp.broadcast_to(by_row[:, None], (num_steps(ring), ring.num_envs)).ravel()


def version(ring: Ring, slots: Array) -> Array:
    """Return the step counter directly after the last write to each slot, `[B]` int32.

    The version identifies the transition in a slot, and is below 1 for empty slots. Rewinding the
    step counter does not change versions.
    """
    written, back = ring.steps_added - age(ring, slots), counters.rewind(num_steps(ring))
    return jnp.where(written > counters.LAST - back, written - back, written)


def time(ring: Ring, slots: Array) -> Array:
    """Return the times when slots were written, `[B]` float32: 0 is the start, 1 the last step."""
    return (ring.steps_added - age(ring, slots)) / jnp.maximum(ring.steps_added, 1)


def since(ring: Ring, steps_added: Array) -> Array:
    """Return the number of steps since the step counter was `steps_added`, `[...]` int32."""
    later = ring.steps_added - steps_added
    return jnp.where(later < 0, later + counters.rewind(num_steps(ring)), later)


def is_due(ring: Ring, every: int) -> Array:
    """Return whether the step counter is a multiple of `every` or was just rewound, `[]` bool."""
    went_back = ring.steps_added == counters.LAST + 1 - counters.rewind(num_steps(ring))
    return (ring.steps_added % every == 0) | went_back


def recent(ring: Ring, order: Array) -> Array:
    """Return the slots `[B]` int32 of transitions by recency, where `order` 0 is the newest.

    Transitions of the same step are ordered by environment. `order` must be less than `size`.
    """
    order = slots_within(order, ring.capacity)
    row = _behind(ring, order // ring.num_envs)
    return row * ring.num_envs + order % ring.num_envs


def previous(ring: Ring, slots: Array, steps: int | Array = 1) -> tuple[Array, Array]:
    """Return the slots of earlier steps in the same environment, and whether they are stored.

    Args:
      ring: the ring buffer.
      slots: `[B]` int32.
      steps: how many steps earlier, an integer or an array that broadcasts with `slots`.

    Returns:
      The earlier slots `[B]` int32, and a mask `[B]` bool, which is False if the earlier step is
      not stored. Episode boundaries are ignored; read `first` to detect them.
    """
    slots = slots_within(slots, ring.capacity)
    earlier = (slots - steps * ring.num_envs) % ring.capacity
    stored = age(ring, slots) + steps < jnp.minimum(ring.steps_added, num_steps(ring))
    return earlier, stored


def check_valid(ring: Ring) -> None:
    """Check the invariants of a concrete ring buffer.

    Raises:
      ValueError: If the step counter is negative, or an empty slot is not zero.
    """
    _check_unbatched(ring)
    if int(ring.steps_added) < 0:
        raise ValueError(f"steps_added must not be negative, got {int(ring.steps_added)}")
    if ring.words[int(size(ring)) :].any():
        raise ValueError("empty slots must be zero, got a nonzero empty slot")


def _check_unbatched(ring: Ring) -> None:
    if jnp.ndim(ring.steps_added):
        raise ValueError(
            f"ring must be one ring buffer, got {len(ring.steps_added)} vmapped ring buffers: call "
            "the function under jax.vmap, or select one with jax.tree.map(lambda x: x[0], ring)"
        )


def _cursor(ring: Ring) -> Array:
    _check_unbatched(ring)
    return ring.steps_added % num_steps(ring)


def _behind(ring: Ring, row: Array) -> Array:
    """Convert rows `[...]` (slots / E) of the ring buffer to ages in steps, or ages to rows.

    The conversion is its own inverse. It avoids remainders, which CPUs do not vectorise.
    """
    behind = _cursor(ring) - 1 - row
    return jnp.where(behind < 0, behind + num_steps(ring), behind)
