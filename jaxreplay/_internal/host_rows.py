"""Rows in the host's memory, for replays that are too large for the device's.

With `storage=Transitions(on_host=True)` the ring keeps on the device the scalar fields of a
transition (rewards, discounts, flags, discrete actions) and the fields that the sampler reads.
All else (observations, continuous actions) lies in an array of the caller's, slot by slot, as the
very bits that the ring would hold. Priorities, trees and draws are on the device either way, so
that the same key draws the same rows:

    rows = host_rows.empty(state.ring)
    state = add(state, transition)
    host_rows.write(rows, state.ring.leaving)  # after every add
    batch = sample(state, key)
    words = host_rows.read(rows, batch.indices)
    ...                                        # and in the jitted gradient step:
    batch = host_rows.join(state.ring, batch, words)

Of vmapped states, all arrays have one more axis in front, `[S]`, but for the slots that are
written, which are the same for all.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay._internal import host_split, packing
from jaxreplay._internal.host_split import HostSplit, Leaving
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Sample


def empty(ring: Ring, *axes: int) -> np.ndarray:
    """Make the rows of an empty ring, `[*axes, C, V]` uint32; memory is taken as they fill.

    Args:
      ring: made for rows on the host; only its sizes are read, so `jax.eval_shape` will do.
      *axes: more axes in front, such as the number of seeds.

    Raises:
      ValueError: the ring keeps whole rows itself.
    """
    return np.zeros((*axes, ring.capacity, _split(ring).there.words), np.uint32)


def write(rows: np.ndarray, leaving: Leaving) -> None:
    """Write the newest row, in place: `ring.leaving` after an add, `[E, V]`.

    Raises:
      ValueError: the rows were made for another ring, or the ring keeps whole rows itself.
    """
    if not isinstance(leaving, Leaving):
        raise ValueError(f"write takes a ring's `leaving`, not a {type(leaving).__name__}: {_MAKE}")
    slots, words = np.asarray(leaving.slots), np.asarray(leaving.words)
    _check_rows(rows)
    wanted = (*rows.shape[:-2], slots.size, rows.shape[-1])
    if words.shape != wanted or words.dtype != np.uint32:
        raise ValueError(
            f"rows have shape {rows.shape}, and what is to be written {words.shape} of dtype "
            f"{words.dtype}: {_EMPTY}"
        )
    for slot in (slots.min(), slots.max()):
        if not 0 <= slot < rows.shape[-2]:
            raise ValueError(f"slot {slot} is beyond the {rows.shape[-2]} rows: {_EMPTY}")
    rows[..., slots, :] = words


def read(rows: np.ndarray, slots: Any) -> np.ndarray:
    """Return what the host keeps of `slots` `[B]` or `[B, T]`: `[B, V]` or `[B, T, V]` uint32.

    Raises:
      ValueError: the rows were made for another ring, or slots are no whole numbers.
    """
    slots = np.asarray(slots)
    _check_rows(rows)
    if slots.dtype.kind not in "iu":
        raise ValueError(f"slots are of dtype {slots.dtype}: give whole numbers")
    if slots.size and not (slots.min() >= 0 and slots.max() < rows.shape[-2]):
        raise ValueError(
            f"slots reach from {slots.min()} to {slots.max()}, and there are {rows.shape[-2]} "
            f"rows: {_EMPTY}"
        )
    if rows.ndim > 2 and slots.shape[:1] != rows.shape[:1]:
        raise ValueError(
            f"rows are of {rows.shape[0]} states, and slots have shape {slots.shape}: give those "
            "of every state, [S, B]"
        )
    if rows.ndim == 2:
        return rows.take(slots, axis=0)
    return np.stack([own.take(at, axis=0) for own, at in zip(rows, slots, strict=True)])


def join(ring: Ring, batch: Sample, words: Array) -> Sample:
    """Return a batch with whole rows.

    Args:
      ring: made for rows on the host; only its sizes are read.
      batch: as it was sampled, `[B]` or `[B, T]`.
      words: what `read` gave for `batch.indices`, `[B, V]` or `[B, T, V]`.

    Raises:
      ValueError: the ring keeps whole rows itself, or words are not those of the batch.
    """
    own, lead = _split(ring), batch.indices.shape
    wanted = (*lead, own.there.words)
    given = getattr(words, "dtype", type(words).__name__), getattr(words, "shape", ())
    if given != (jnp.uint32, wanted):
        raise ValueError(
            f"words are {given[0]} of shape {list(given[1])}, and the batch wants uint32 "
            f"{list(wanted)}: give host_rows.read(rows, batch.indices)"
        )
    flat = packing.unpack(own.there, words.reshape(-1, own.there.words))
    away = jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), flat)
    return batch._replace(transition=host_split.join(own, batch.transition, away))


_EMPTY = "make them for this replay, by host_rows.empty(state.ring)"
_MAKE = "make the replay with storage=Transitions(on_host=True)"


def _check_rows(rows: Any) -> None:
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint32 or rows.ndim < 2:
        given = type(rows).__name__
        if isinstance(rows, np.ndarray):
            given = f"{rows.dtype} of shape {rows.shape}"
        raise ValueError(f"rows are uint32 of shape [C, V], not {given}: {_EMPTY}")


def _split(ring: Ring) -> HostSplit:
    if not isinstance(ring, Ring):
        raise ValueError(f"this takes a ring, not a {type(ring).__name__}: give state.ring")
    if ring.split is None:
        raise ValueError(f"this ring keeps whole rows on the device: {_MAKE}")
    return ring.split
