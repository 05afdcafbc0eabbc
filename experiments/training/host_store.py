"""Frames of all seeds in the host's memory, for replays that are too large for the device's.

The device keeps the books and says which rows of pixels a batch is made of
(`jaxreplay.frames`, `make_replay(frames_on_host=True)`); the pixels stay here. They are written as
soon as the environments have stepped, up to n - 1 rows ahead of the transitions that the n-step
window still holds back: the places are the same, since every step becomes one transition.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxreplay import frames as frames_
from jaxreplay.frames import Frames, Located
from jaxreplay.types import Sample


class HostFrames(NamedTuple):
    """Pixels, which are written in place, and where every lane is."""

    pixels: np.ndarray  # [S, E * places + 1, D]
    newest: np.ndarray  # [S, E] int32, as in `Frames`
    age: np.ndarray  # [S, E] int32, as in `Frames`


def empty(frames: Frames, seeds: int) -> HostFrames:
    """Make the store of `seeds` runs with books of such sizes; memory is taken as it fills."""
    one = frames_.empty_pixels(frames, on_host=True)
    lanes = np.zeros((seeds, frames.newest.shape[-1]), np.int32)
    return HostFrames(np.zeros((seeds, *one.shape), one.dtype), lanes - 2, lanes)


def write(
    store: HostFrames, frames: Frames, obs: np.ndarray, next_obs: np.ndarray, first: np.ndarray
) -> HostFrames:
    """Take in one step of every lane; `obs` and `next_obs` are `[S, E, ..., K]`, `first` `[S, E]`.

    Returns:
      The store, whose pixels are the same array.
    """
    newest, age = frames_.advance(store.newest, store.age, first)
    for seed, pixels in enumerate(store.pixels):
        frames_.write_on_host(pixels, frames, newest[seed], obs[seed], next_obs[seed], ())
    return HostFrames(store.pixels, newest, age)


def read(store: HostFrames, frames: Frames, batch: Sample) -> Sample:
    """Return a batch `[S, B]` with observations in place of where their frames are."""

    def stacks(rows: Any) -> np.ndarray:
        pairs = zip(store.pixels, np.asarray(rows), strict=True)
        return np.stack([frames_.assemble(frames, pixels[at]) for pixels, at in pairs])

    rows = Located(batch.transition.obs, batch.transition.next_obs)
    return with_observations(batch, *map(stacks, rows))


def with_observations(batch: Sample, obs: Any, next_obs: Any) -> Sample:
    """Return a batch with these observations."""
    return batch._replace(transition=batch.transition._replace(obs=obs, next_obs=next_obs))
