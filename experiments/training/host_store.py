"""What a replay keeps in the host's memory: rows of all seeds, or frames of stacks stored once.

The device has the books and the priorities, draws a batch, and leaves gaps in it for what is here;
the host reads that, `[S, B]`, and the device fills the gaps in (`filled`) in the program that
learns from the batch. Draws are those of a replay on the device.

Rows leave the device as they are added to the ring. Frames are written as soon as the environments
have stepped, up to n - 1 rows ahead of the transitions that the n-step window still holds back: the
places are the same, since every step becomes one transition.
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
from jaxreplay.types import Sample


def given_like(ring: Ring, batch: Sample | tuple[()]) -> Any:
    """Return shapes and dtypes of what `Store.read` gives for a batch, without axes of seeds.

    Args:
      ring: of one seed.
      batch: `[B]`; of both, shapes and dtypes will do.

    Returns:
      () if the ring itself keeps all that is stored, or the batch is ().
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


def filled(ring: Ring, batch: Sample, given: Any) -> Sample:
    """Return a batch `[B]` of one seed with what the host had of it."""
    if isinstance(ring, HostRing):
        return host_rows.join(ring, batch, given)
    if _has_frames_on_host(ring):
        obs, next_obs = given
        return batch._replace(transition=batch.transition._replace(obs=obs, next_obs=next_obs))
    return batch


class HostRows:
    """Rows, but for what the device keeps of them."""

    def __init__(self, kept: np.ndarray) -> None:
        self.kept = kept  # [S, C, V] uint32, as in `jaxreplay.loops.host_rows`

    def step(self, obs: np.ndarray, next_obs: np.ndarray, first: np.ndarray) -> None:
        """Do nothing: rows come when they are added."""

    def add(self, ring: Ring) -> None:
        """Take in the newest row; of a ring to which none was added, it is there already."""
        assert isinstance(ring, HostRing)
        host_rows.write(self.kept, ring.leaving)

    def read(self, batch: Sample | tuple[()]) -> np.ndarray | tuple[()]:
        """Return the words `[S, ..., V]` of a batch `[S, ...]`; () of ()."""
        return host_rows.read(self.kept, batch.indices) if batch else ()


class Pixels(NamedTuple):
    """Frames, which are written in place, and where every lane is."""

    pixels: np.ndarray  # [S, E * places + 1, D]
    newest: np.ndarray  # [S, E] int32, as in `frames.FrameIndex`
    age: np.ndarray  # [S, E] int32, as in `frames.FrameIndex`


class HostFrames:
    """Frames of stacks that are stored once; the device knows which a stack is made of."""

    def __init__(self, frames: frames_.FrameIndex, kept: Pixels) -> None:
        self.kept, self._frames = kept, frames

    def step(self, obs: np.ndarray, next_obs: np.ndarray, first: np.ndarray) -> None:
        """Write the frames of one step of every lane."""
        places = self._frames.places
        newest, age = frames_.advance(self.kept.newest, self.kept.age, first, places)
        for seed, pixels in enumerate(self.kept.pixels):
            one = newest[seed], obs[seed], next_obs[seed]
            frames_.write_on_host(pixels, self._frames, *one, None)
        self.kept = Pixels(self.kept.pixels, newest, age)

    def add(self, ring: Ring) -> None:
        """Do nothing: frames are here before their transitions are there."""

    def read(self, batch: Sample | tuple[()]) -> tuple[np.ndarray, ...]:
        """Return the stacks of both observations of a batch `[S, ...]`; () of ()."""
        if not batch:
            return ()
        return self._stacks(batch.transition.obs), self._stacks(batch.transition.next_obs)

    def _stacks(self, places: Any) -> np.ndarray:
        """Return stacks `[S, ..., K]` from where their frames are, `[S, ..., K]` int32."""
        places = np.asarray(places)
        flat = places.reshape(len(places), -1, places.shape[-1])
        pairs = zip(self.kept.pixels, flat, strict=True)
        stacks = [frames_.assemble(self._frames, pixels[at]) for pixels, at in pairs]
        return np.stack(stacks).reshape(*places.shape[:-1], *stacks[0].shape[1:])


Store = HostRows | HostFrames


def store_of(ring: Ring, seeds: int) -> Store | None:
    """Make the store of so many seeds with rings of such sizes; None: all is on the device.

    Memory is taken as it fills.
    """
    if isinstance(ring, HostRing):
        return HostRows(host_rows.empty(ring, seeds))
    if not _has_frames_on_host(ring):
        return None
    one = frames_.empty_pixels(ring.frames, on_host=True)
    lanes = np.zeros((seeds, ring.frames.newest.shape[-1]), np.int32)
    return HostFrames(
        ring.frames, Pixels(np.zeros((seeds, *one.shape), one.dtype), lanes - 2, lanes)
    )


def host_bytes(ring: Ring) -> int:
    """Return what the host keeps of a ring of such sizes."""
    if isinstance(ring, HostRing):
        return 4 * ring.capacity * ring.split.there.words
    if not _has_frames_on_host(ring):
        return 0
    frames = ring.frames
    places = frames.newest.shape[-1] * frames.places + 1
    return places * math.prod(frames.shape) * np.dtype(frames.dtype).itemsize


def _has_frames_on_host(ring: Ring) -> TypeGuard[FrameRing]:
    return isinstance(ring, FrameRing) and ring.pixels is None
