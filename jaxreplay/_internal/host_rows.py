"""Transition fields in host memory, for replays larger than the device's memory.

With `storage=Transitions(on_host=True)`, the ring buffer on the device contains the scalar fields
of a transition (rewards, discounts, flags, discrete actions) and the fields that the sampler reads.
The other fields (observations, continuous actions) are stored as bits in a NumPy array that the
caller owns, with one row per slot. Priorities, sum trees and sampling remain on the device, so the
same key samples the same transitions as without host storage:

    rows = host_rows.empty(state.ring)
    state = add(state, transition)
    host_rows.write(rows, state.ring.leaving)  # after every add
    batch = sample(state, key)
    words = host_rows.read(rows, batch.indices)
    ...                                        # and in the jitted gradient step:
    batch = host_rows.join(state.ring, batch, words)

For vmapped states, all arrays have an additional leading axis `[S]`, except the slots to write,
which are the same for all states.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal import host_split, packing
from jaxreplay._internal.arguments import check_slots
from jaxreplay._internal.host_split import HostSplit, Leaving
from jaxreplay.ring import Ring
from jaxreplay.storage import HostRing
from jaxreplay.types import Array, Sample

_CREATE = "create the replay with storage=Transitions(on_host=True)"
_EMPTY = "use rows from host_rows.empty(state.ring) of this replay"


def empty(ring: Ring, *axes: int) -> np.ndarray:
    """Return rows of V words for the C slots of an empty ring buffer, `[*axes, C, V]` uint32.

    The operating system allocates the memory when rows are written.

    Args:
      ring: ring buffer of a replay with host storage; shapes from `jax.eval_shape` suffice.
      *axes: sizes of leading axes, such as the number of seeds.

    Raises:
      ValueError: If all fields are on the device.
    """
    return np.zeros((*axes, ring.capacity, _split(ring).there.words), np.uint32)


def write(rows: np.ndarray, leaving: Leaving) -> None:
    """Write the newest transitions, which are `ring.leaving` after an add, to the rows in place.

    Raises:
      ValueError: If all fields are on the device, or the rows belong to a different ring buffer.
    """
    if not isinstance(leaving, Leaving):
        raise ValueError(f"leaving must be ring.leaving, got {type(leaving).__name__}: {_CREATE}")
    slots, words = np.asarray(leaving.slots), np.asarray(leaving.words)
    _check_rows(rows)
    wanted = (*rows.shape[:-2], slots.size, rows.shape[-1])
    if words.shape != wanted or words.dtype != np.uint32:
        raise ValueError(
            f"rows of shape {rows.shape} do not match leaving.words of shape {words.shape} and "
            f"dtype {words.dtype}: {_EMPTY}"
        )
    rows[..., check_slots(slots, rows.shape[-2]), :] = words


def read(rows: np.ndarray, slots: Any) -> np.ndarray:
    """Return the uint32 words `[B, V]` or `[B, T, V]` of `slots` `[B]` or `[B, T]`.

    Raises:
      ValueError: If `rows` are not from `empty`, or `slots` are not integers in range.
    """
    _check_rows(rows)
    slots = check_slots(np.asarray(slots), rows.shape[-2])
    if rows.ndim > 2 and slots.shape[:1] != rows.shape[:1]:
        raise ValueError(
            f"slots must have shape [S, B] for rows of S={rows.shape[0]} states, got {slots.shape}"
        )
    if rows.ndim == 2:
        return rows.take(slots, axis=0)
    return np.stack([own.take(at, axis=0) for own, at in zip(rows, slots, strict=True)])


def join(ring: Ring, batch: Sample, words: Array) -> Sample:
    """Add the fields on the host to a sampled batch.

    Args:
      ring: ring buffer of a replay with host storage; shapes suffice.
      batch: result of `sample`, `[B]` or `[B, T]`.
      words: `read(rows, batch.indices)`, `[B, V]` or `[B, T, V]` uint32.

    Raises:
      ValueError: If all fields are on the device, or `words` do not match the batch.
    """
    own, lead = _split(ring), batch.indices.shape
    wanted = (*lead, own.there.words)
    given = getattr(words, "dtype", type(words).__name__), getattr(words, "shape", ())
    if given != (jnp.uint32, wanted):
        raise ValueError(
            f"words must be uint32 of shape {list(wanted)}, got {given[0]} of shape "
            f"{list(given[1])}: pass host_rows.read(rows, batch.indices)"
        )
    flat = packing.unpack(own.there, words.reshape(-1, own.there.words))
    there = jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), flat)
    return batch._replace(transition=host_split.join(own, batch.transition, there))


def _check_rows(rows: Any) -> None:
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint32 or rows.ndim < 2:
        given = type(rows).__name__
        if isinstance(rows, np.ndarray):
            given = f"{rows.dtype} of shape {rows.shape}"
        raise ValueError(f"rows must be uint32 of shape [C, V], got {given}: {_EMPTY}")


def _split(ring: Ring) -> HostSplit:
    if not isinstance(ring, Ring):
        raise ValueError(f"ring must be state.ring, got {type(ring).__name__}")
    if not isinstance(ring, HostRing):
        raise ValueError(f"the ring buffer stores all fields on the device: {_CREATE}")
    return ring.split
