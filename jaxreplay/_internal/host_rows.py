"""Fields of transitions in the host's memory, for replays larger than the device's memory.

With `storage=Transitions(on_host=True)` the ring keeps on the device the scalar fields of a
transition (rewards, discounts, flags, discrete actions) and the fields that the sampler reads. The
other fields (observations, continuous actions) are in a NumPy array of the caller, slot by slot, as
the bits that the ring would hold. Priorities, trees and draws are on the device in either case, so
that the same key samples the same transitions:

    rows = host_rows.empty(state.ring)
    state = add(state, transition)
    host_rows.write(rows, state.ring.leaving)  # after every add
    batch = sample(state, key)
    words = host_rows.read(rows, batch.indices)
    ...                                        # and in the jitted gradient step:
    batch = host_rows.join(state.ring, batch, words)

For vmapped states, all arrays have one more leading axis `[S]`, except for the slots that are
written, which are the same in all states.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal import host_split, packing
from jaxreplay._internal.arguments import check_slots
from jaxreplay._internal.host_split import HostSplit, Leaving
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Sample

_MAKE = "make the replay with storage=Transitions(on_host=True)"
_EMPTY = "use host_rows.empty(state.ring) of this replay"


def empty(ring: Ring, *axes: int) -> np.ndarray:
    """Return the rows of an empty ring, `[*axes, C, V]` uint32; memory is allocated as they fill.

    Args:
      ring: of a replay with storage on the host; shapes suffice, as of `jax.eval_shape`.
      *axes: leading axes, such as the number of seeds.

    Raises:
      ValueError: the ring stores all fields itself.
    """
    return np.zeros((*axes, ring.capacity, _split(ring).there.words), np.uint32)


def write(rows: np.ndarray, leaving: Leaving) -> None:
    """Write the newest transitions in place: `ring.leaving` after an add, `[E, V]`.

    Raises:
      ValueError: the rows are of another ring, or the ring stores all fields itself.
    """
    if not isinstance(leaving, Leaving):
        raise ValueError(f"leaving is a {type(leaving).__name__}: {_MAKE}, and give ring.leaving")
    slots, words = np.asarray(leaving.slots), np.asarray(leaving.words)
    _check_rows(rows)
    wanted = (*rows.shape[:-2], slots.size, rows.shape[-1])
    if words.shape != wanted or words.dtype != np.uint32:
        raise ValueError(
            f"rows has shape {rows.shape}, and leaving.words {words.shape} of dtype "
            f"{words.dtype}: {_EMPTY}"
        )
    rows[..., check_slots(slots, rows.shape[-2]), :] = words


def read(rows: np.ndarray, slots: Any) -> np.ndarray:
    """Return the words of `slots` `[B]` or `[B, T]`: `[B, V]` or `[B, T, V]` uint32.

    Raises:
      ValueError: the rows are of another ring, or slots are not integers in its range.
    """
    _check_rows(rows)
    slots = check_slots(np.asarray(slots), rows.shape[-2])
    if rows.ndim > 2 and slots.shape[:1] != rows.shape[:1]:
        raise ValueError(
            f"rows has {rows.shape[0]} states, and slots shape {slots.shape}: give slots [S, B]"
        )
    if rows.ndim == 2:
        return rows.take(slots, axis=0)
    return np.stack([own.take(at, axis=0) for own, at in zip(rows, slots, strict=True)])


def join(ring: Ring, batch: Sample, words: Array) -> Sample:
    """Return a batch with all fields.

    Args:
      ring: of a replay with storage on the host; shapes suffice.
      batch: from `sample`, `[B]` or `[B, T]`.
      words: `read(rows, batch.indices)`, `[B, V]` or `[B, T, V]` uint32.

    Raises:
      ValueError: the ring stores all fields itself, or words are not those of the batch.
    """
    own, lead = _split(ring), batch.indices.shape
    wanted = (*lead, own.there.words)
    given = getattr(words, "dtype", type(words).__name__), getattr(words, "shape", ())
    if given != (jnp.uint32, wanted):
        raise ValueError(
            f"words has dtype {given[0]} and shape {list(given[1])}, not uint32 {list(wanted)}: "
            "give host_rows.read(rows, batch.indices)"
        )
    flat = packing.unpack(own.there, words.reshape(-1, own.there.words))
    there = jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), flat)
    return batch._replace(transition=host_split.join(own, batch.transition, there))


def _check_rows(rows: Any) -> None:
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint32 or rows.ndim < 2:
        given = type(rows).__name__
        if isinstance(rows, np.ndarray):
            given = f"{rows.dtype} of shape {rows.shape}"
        raise ValueError(f"rows is {given}, not uint32 of shape [C, V]: {_EMPTY}")


def _split(ring: Ring) -> HostSplit:
    if not isinstance(ring, Ring):
        raise ValueError(f"ring is a {type(ring).__name__}: give state.ring")
    if ring.split is None:
        raise ValueError(f"the ring stores all fields on the device: {_MAKE}")
    return ring.split
