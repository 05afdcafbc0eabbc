"""Ring buffer for transitions, interleaved by environment.

With E environments, step t occupies slots `t * E .. t * E + E - 1`, one for each environment. The
step before slot s in the same environment is therefore in slot `s - E` (modulo the capacity). All
fields of a transition, regardless of dtype, are packed into one row of 32-bit words, so reading a
batch is a single gather. A transition may be a `Transition` or any other pytree of arrays; reads
preserve its type.
"""

from collections.abc import Collection
from typing import cast

import jax
import jax.numpy as jnp
from flax import struct

from jaxreplay._internal import buffer, counters, host_split, packing
from jaxreplay._internal import frames as frames_
from jaxreplay._internal.arguments import as_int32, check_scalar, slots_within
from jaxreplay._internal.buffer import Buffer
from jaxreplay._internal.frames import FrameIndex, Spot
from jaxreplay._internal.host_split import HostSplit, Leaving
from jaxreplay._internal.packing import Layout
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.storage import Frames, SharedObservations, Storage, Transitions
from jaxreplay.types import Array, Transition, Tree, get_field, has_field, replace_fields


class Ring(struct.PyTreeNode):
    """State of a ring buffer, which overwrites the oldest transitions first."""

    words: Buffer  # [C, W] uint32, the bits of all fields in W words per slot
    steps_added: Array  # [] int32, step counter, incremented by every add. Modulo `num_steps`, it
    # is the step to overwrite. After 2^31 - 1, it rewinds by a multiple of `num_steps`.
    frames: FrameIndex | None  # frame index: positions of observations that are stored once
    pixels: Buffer | None  # [.., D] observations that are stored once; None if on the host
    layout: Layout = struct.field(pytree_node=False)  # layout of the fields in `words`
    capacity: int = struct.field(pytree_node=False)  # number of slots C
    num_envs: int = struct.field(pytree_node=False)  # number of environments E
    packed_obs: Layout | None = struct.field(pytree_node=False, default=None)  # layout of an
    # observation that is stored once as a single frame; None for stacked frames
    leaving: Leaving | None = None  # fields of the newest transitions to be copied to the host
    split: HostSplit | None = struct.field(pytree_node=False, default=None)  # division of fields
    # between device and host; `words` and `layout` contain only the fields on the device


def init(
    example: Tree,
    capacity: int,
    num_envs: int = 1,
    storage: Storage = Transitions(),
    kept: Collection[str] = (),
) -> Ring:
    """Return an empty ring buffer.

    Args:
      example: one transition without a batch axis. It defines the structure, shapes and dtypes.
      capacity: number of slots C, a multiple of `num_envs`.
      num_envs: number of environments E.
      storage: storage format for observations.
      kept: names of fields to store on the device regardless of `storage`.

    Raises:
      ValueError: If `capacity` is not a positive multiple of `num_envs`, or `storage` does not
        support the example.
    """
    if num_envs < 1 or capacity < num_envs:
        raise ValueError(
            f"capacity >= num_envs >= 1 is required, got capacity {capacity}, num_envs {num_envs}"
        )
    if capacity % num_envs:
        less = capacity - capacity % num_envs
        raise ValueError(
            f"capacity must be a multiple of num_envs {num_envs}, got {capacity}: "
            f"use {less} or {less + num_envs}"
        )
    packing.plan(_stored(example))  # check the original fields, so errors name them
    frames = pixels = packed_obs = None
    if not isinstance(storage, Transitions):
        _check_stored_once(example)
        obs, ahead = get_field(example, "obs"), storage.ahead
        if isinstance(storage, SharedObservations):
            packed_obs = packing.plan(obs)
            obs = jnp.zeros((packed_obs.words, 1), jnp.uint32)
        if ahead is None and _is_single_step(example):
            ahead = 1
        stack = storage.stack if isinstance(storage, Frames) else 1
        frames = frames_.init(obs, capacity, num_envs, stack, storage.spare, ahead)
        if not (isinstance(storage, Frames) and storage.on_host):
            pixels = cast(Buffer, frames_.empty_pixels(frames))
        spot = Spot(*[jnp.zeros((), jnp.int32)] * 3)
        example = replace_fields(example, obs=spot, next_obs=None)
    split, leaving = None, None
    if isinstance(storage, Transitions) and storage.on_host:
        split = host_split.plan(_stored(example), kept)
        leaving = host_split.empty_leaving(split, num_envs)
    layout = packing.plan(_stored(example)) if split is None else split.here
    words = jnp.zeros((capacity, layout.words), jnp.uint32)
    counter = jnp.zeros((), jnp.int32)
    return Ring(
        words, counter, frames, pixels, layout, capacity, num_envs, packed_obs, leaving, split
    )


@with_default_promotion
def add(ring: Ring, transition: Tree) -> tuple[Ring, Array]:
    """Write transitions `[E, ...]` to the oldest slots; return the new ring and the slots `[E]`.

    Raises:
      ValueError: If the transitions do not match the example, see `check_fits`.
    """
    check_fits(ring, transition)
    return write(ring, jax.lax.stop_gradient(transition))


def write(ring: Ring, transition: Tree) -> tuple[Ring, Array]:
    """Write transitions as `add` does, without checking shapes or stopping gradients."""
    slots = _cursor(ring) * ring.num_envs + jnp.arange(ring.num_envs, dtype=jnp.int32)
    if ring.frames is not None:
        ring, transition = _add_frames(ring, ring.frames, transition)
    here = _stored(transition)
    if ring.split is not None:
        here, there = host_split.divide(ring.split, here)
        words = packing.pack(ring.split.there, there, ring.num_envs)
        ring = ring.replace(leaving=Leaving(words, slots))
    packed = packing.pack(ring.layout, here, ring.num_envs)
    words = buffer.write(ring.words, slots, packed)
    later = counters.increment(ring.steps_added, counters.rewind(num_steps(ring)))
    return ring.replace(words=words, steps_added=later), slots


def check_fits(ring: Ring, transition: Tree) -> None:
    """Check that transitions `[E, ...]` can be stored without loss.

    Raises:
      ValueError: If a field is missing or unknown, its shape does not match the example, or its
        dtype cannot be cast to the dtype in the example without loss, such as float to int.
    """
    apart = ("obs", "next_obs") if ring.frames is not None else ()
    packing.check_fits(row_layout(ring), _stored(transition), ring.num_envs, apart)
    if ring.packed_obs is not None:
        for name in apart:
            obs = get_field(transition, name)
            packing.check_fits(ring.packed_obs, obs, ring.num_envs, of=name)


def as_stored(ring: Ring, transition: Tree) -> Tree:
    """Cast transitions `[E, ...]` that pass `check_fits` to the dtypes of the ring buffer."""
    apart: dict[str, str] = {}
    if ring.packed_obs is not None:
        named = ((name, get_field(transition, name)) for name in ("obs", "next_obs"))
        obs = {name: packing.as_stored(ring.packed_obs, x) for name, x in named}
        rest = replace_fields(transition, obs=None, next_obs=None)
        return replace_fields(packing.as_stored(row_layout(ring), rest), **obs)
    if ring.frames is not None:
        apart = {"obs": ring.frames.dtype, "next_obs": ring.frames.dtype}
    return packing.as_stored(row_layout(ring), transition, apart)


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
    """Return the transitions in slots `[B]` or `[B, T]` int32, in [0, capacity).

    Fields that are stored on the host are None; `host_rows.join` adds them.
    """
    slots = slots_within(slots, ring.capacity)
    if slots.ndim > 1:
        flat = gather(ring, slots.ravel())
        return jax.tree.map(lambda x: x.reshape(*slots.shape, *x.shape[1:]), flat)
    read = packing.unpack(ring.layout, buffer.read(ring.words, slots))
    frames, pixels = ring.frames, ring.pixels
    if frames is None:
        return read
    located = frames_.locate(frames, slots, get_field(read, "obs"))
    if pixels is None:
        return replace_fields(read, obs=located.obs, next_obs=located.next_obs)
    # Assemble one stack after the other, because XLA is slower when assembling both at once.
    obs, next_obs = (frames_.assemble(frames, frames_.read(pixels, x)) for x in located)
    if ring.packed_obs is not None:
        obs, next_obs = (packing.unpack(ring.packed_obs, x[..., 0]) for x in (obs, next_obs))
    return replace_fields(read, obs=obs, next_obs=next_obs)


def contents(ring: Ring) -> Tree:
    """Return the transitions of all slots, `[C, ...]`, with zeros in empty slots.

    Under `jit`, only fields that are used are read. Observations that are stored once are returned
    as positions (`frames.Spot`). Fields that are stored on the host are None.
    """
    return packing.unpack(ring.layout, ring.words)


def row_layout(ring: Ring) -> Layout:
    """Return the layout of a transition with all its fields, on both device and host."""
    return ring.layout if ring.split is None else ring.split.whole


def num_steps(ring: Ring) -> int:
    """Return the maximum number of steps in the ring buffer, `capacity / num_envs`."""
    return ring.capacity // ring.num_envs


def size(ring: Ring) -> Array:
    """Return the number of non-empty slots, `[]` int32. These are slots 0 .. size - 1."""
    return jnp.minimum(ring.steps_added, num_steps(ring)) * ring.num_envs


def even_probability(ring: Ring, slots: Array) -> Array:
    """Return uniform sampling probabilities of slots, `[n]` float32, with 0 for empty slots."""
    _check_one(ring)
    slots, stored = as_int32("slots", slots, ring.capacity), size(ring)
    share = 1.0 / jnp.maximum(stored, 1).astype(jnp.float32)
    return jnp.where(slots < stored, share, 0.0)


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
    """Return when slots were written, `[B]` float32 from 0 (start) to 1 (latest step)."""
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


def metrics(ring: Ring) -> dict[str, Array]:
    """Return scalar float32 metrics if observations are stored once, otherwise an empty dictionary.

    `frames_lost` counts transitions whose observations were overwritten because the storage option
    `spare` or `ahead` is too small. `frames_malformed` counts episodes that started with more than
    one nonzero frame.
    """
    frames = ring.frames
    if frames is None:
        return {}
    # On the host, pixels are written directly after each step, before n-step transitions are added.
    ahead = frames.ahead if ring.pixels is None else 0
    live = jnp.arange(ring.capacity) < size(ring)
    lost = frames_.lost(frames, get_field(contents(ring), "obs"), live, ahead)
    counts = {"frames_lost": lost, "frames_malformed": frames.malformed}
    return {name: count.astype(jnp.float32) for name, count in counts.items()}


def check_valid(ring: Ring) -> None:
    """Check the invariants of a concrete ring buffer.

    Raises:
      ValueError: If the step counter is negative, or an empty slot is not zero.
    """
    _check_one(ring)
    if int(ring.steps_added) < 0:
        raise ValueError(f"steps_added must not be negative, got {int(ring.steps_added)}")
    if ring.words[int(size(ring)) :].any():
        raise ValueError("empty slots must be zero, got a nonzero empty slot")


def _check_stored_once(example: Tree) -> None:
    """Raise ValueError unless the example supports reading `next_obs` from the following step."""
    missing = [x for x in ("obs", "next_obs", "first") if not has_field(example, x)]
    if missing:
        raise ValueError(
            "storing observations once requires the fields obs, next_obs and first (whether a step "
            f"begins an episode), but the example, a {type(example).__name__}, lacks "
            f"{', '.join(missing)}: add the missing fields or use storage=Transitions()"
        )
    check_scalar("first", get_field(example, "first"), bool)
    if has_field(example, "n_steps"):
        check_scalar("n_steps", get_field(example, "n_steps"), int)
    both = [get_field(example, name) for name in ("obs", "next_obs")]
    kinds = [[(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(obs)] for obs in both]
    if kinds[0] != kinds[1] or jax.tree.structure(both[0]) != jax.tree.structure(both[1]):
        raise ValueError(
            "obs and next_obs in the example must have the same structure, shapes and dtypes: "
            "change the example or use storage=Transitions()"
        )


def _is_single_step(example: Tree) -> bool:
    """Return whether transitions are always single-step: their type has no field `n_steps`."""
    return not isinstance(example, Transition) and not has_field(example, "n_steps")


def _add_frames(ring: Ring, frames: FrameIndex, transition: Tree) -> tuple[Ring, Tree]:
    """Store the observations of a step; return its transitions with positions as observations."""
    names = ("obs", "next_obs", "first", "n_steps")
    obs, next_obs, first, n_steps = (get_field(transition, name) for name in names)
    if ring.packed_obs is not None:
        layout, envs = ring.packed_obs, ring.num_envs
        obs, next_obs = (packing.pack(layout, x, envs)[..., None] for x in (obs, next_obs))
    frames, spot = frames_.add(frames, obs, first, n_steps)
    if ring.pixels is not None:
        pixels = frames_.write(ring.pixels, frames, obs, next_obs, n_steps)
        ring = ring.replace(pixels=pixels)
    return ring.replace(frames=frames), replace_fields(transition, obs=spot, next_obs=None)


def _stored(transition: Tree) -> Tree:
    """Remove the field `n_steps` of a `Transition`, because it is not stored."""
    return transition._replace(n_steps=None) if isinstance(transition, Transition) else transition


def _check_one(ring: Ring) -> None:
    if jnp.ndim(ring.steps_added):
        raise ValueError(
            f"ring must not be batched, got a batch of {len(ring.steps_added)}: call the function "
            "under jax.vmap, or select an element with jax.tree.map(lambda x: x[0], ring)"
        )


def _cursor(ring: Ring) -> Array:
    _check_one(ring)
    return ring.steps_added % num_steps(ring)


def _behind(ring: Ring, row: Array) -> Array:
    """Convert rows `[...]` (slots / E) of the ring buffer to ages in steps, or ages to rows.

    The conversion is its own inverse. It avoids remainders, which CPUs do not vectorise.
    """
    behind = _cursor(ring) - 1 - row
    return jnp.where(behind < 0, behind + num_steps(ring), behind)
