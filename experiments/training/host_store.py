"""The part of a replay in the host's memory: rows of all seeds, or frames that are stored once.

The device has indices and priorities, and draws incomplete batches. The host reads the missing part
`[S, B]`, and the program of the gradient update inserts it (`fill`). Draws equal those of a replay
on the device.

Rows leave the device when they are added to the ring. Frames are written right after the step of
the environments, up to n - 1 rows ahead of the transitions in the n-step window; the places agree,
because every step becomes one transition.
"""

import math
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay.loops import frames as frames_
from jaxreplay.loops import host_rows
from jaxreplay.ring import Ring
from jaxreplay.storage import FrameRing, HostRing
from jaxreplay.types import Sample, Tree


def given_like(ring: Ring, batch: Sample | tuple[()]) -> Any:
    """Return shapes and dtypes of `Store.read(batch)` for one seed.

    Args:
      ring: ring of one seed, or its shapes and dtypes.
      batch: `[B]`, or its shapes and dtypes.
    """
    if not batch:
        return ()
    if isinstance(ring, HostRing):
        shape = (*batch.indices.shape, ring.split.there.words)
        return jax.ShapeDtypeStruct(shape, jnp.uint32)
    if _has_frames_on_host(ring):
        frames, lead = ring.frames, batch.transition.obs.shape[:-1]
        shape = (*lead, *frames.shape, frames.stack)
        return (jax.ShapeDtypeStruct(shape, jnp.dtype(frames.dtype)),) * 2
    return ()


def fill(ring: Ring, batch: Sample, given: Any) -> Sample:
    """Return a batch `[B]` of one seed with the part `given` by the host."""
    if isinstance(ring, HostRing):
        return host_rows.join(ring, batch, given)
    if _has_frames_on_host(ring):
        obs, next_obs = given
        return batch._replace(transition=batch.transition._replace(obs=obs, next_obs=next_obs))
    return batch


class Store:
    """The host's part of a replay; this base class is for replays on the device.

    Attributes:
      kept: NumPy arrays; () for replays on the device.
    """

    kept: Any = ()

    def step(self, obs: Tree, next_obs: Tree, first: np.ndarray) -> None:
        """Store one step of all environments, `[S, E, ...]`."""

    def add(self, ring: Ring) -> None:
        """Store the newest row of the ring."""

    def read(self, batch: Sample | tuple[()]) -> Any:
        """Return the host's part of a batch `[S, ...]`; () for () and for replays on the device."""
        return ()


class HostRows(Store):
    """Rows without the numbers that the device needs; `kept` is `[S, C, V]` uint32."""

    def __init__(self, kept: np.ndarray) -> None:
        self.kept = kept

    def add(self, ring: Ring) -> None:
        assert isinstance(ring, HostRing)
        host_rows.write(self.kept, ring.leaving)

    def read(self, batch: Sample | tuple[()]) -> Any:
        return host_rows.read(self.kept, batch.indices) if batch else ()


class Pixels(NamedTuple):
    """Frames, which are written in place, and the newest frame of every environment."""

    pixels: np.ndarray  # [S, E * places + 1, D]
    newest: np.ndarray  # [S, E] int32, as in `frames.FrameIndex`
    age: np.ndarray  # [S, E] int32, as in `frames.FrameIndex`


class HostFrames(Store):
    """Frames that are stored once; the device has the indices of the frames of each stack."""

    def __init__(self, frames: frames_.FrameIndex, kept: Pixels) -> None:
        self.kept, self._frames = kept, frames

    def step(self, obs: np.ndarray, next_obs: np.ndarray, first: np.ndarray) -> None:
        places = self._frames.places
        newest, age = frames_.advance(self.kept.newest, self.kept.age, first, places)
        for seed, pixels in enumerate(self.kept.pixels):
            one = newest[seed], obs[seed], next_obs[seed]
            frames_.write_on_host(pixels, self._frames, *one, None)
        self.kept = Pixels(self.kept.pixels, newest, age)

    def read(self, batch: Sample | tuple[()]) -> Any:
        if not batch:
            return ()
        return self._stacks(batch.transition.obs), self._stacks(batch.transition.next_obs)

    def _stacks(self, places: Any) -> np.ndarray:
        """Return stacks `[S, ..., K]` from the places of their frames, `[S, ..., K]` int32."""
        places = np.asarray(places)
        flat = places.reshape(len(places), -1, places.shape[-1])
        pairs = zip(self.kept.pixels, flat, strict=True)
        stacks = [frames_.assemble(self._frames, pixels[at]) for pixels, at in pairs]
        return np.stack(stacks).reshape(*places.shape[:-1], *stacks[0].shape[1:])


def store_of(ring: Ring, seeds: int) -> Store:
    """Make the empty store of `seeds` seeds, given the ring of one or its shapes and dtypes.

    The operating system provides memory as the store fills.
    """
    if isinstance(ring, HostRing):
        return HostRows(host_rows.empty(ring, seeds))
    if not _has_frames_on_host(ring):
        return Store()
    one = frames_.empty_pixels(ring.frames, on_host=True)
    zeros = np.zeros((seeds, ring.frames.newest.shape[-1]), np.int32)
    pixels = np.zeros((seeds, *one.shape), one.dtype)
    return HostFrames(ring.frames, Pixels(pixels, zeros - 2, zeros))


def host_bytes(ring: Ring) -> int:
    """Return the bytes on the host for one seed, given its ring or its shapes and dtypes."""
    if isinstance(ring, HostRing):
        return 4 * ring.capacity * ring.split.there.words
    if not _has_frames_on_host(ring):
        return 0
    frames = ring.frames
    places = frames.newest.shape[-1] * frames.places + 1
    return places * math.prod(frames.shape) * np.dtype(frames.dtype).itemsize


def _has_frames_on_host(ring: Ring) -> TypeGuard[FrameRing]:
    return isinstance(ring, FrameRing) and ring.pixels is None
