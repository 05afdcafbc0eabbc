"""Frame-stacked observations with every frame stored once.

An observation is a stack `[..., K]` of the latest K frames, newest last, with zeros for frames
before the episode. Successive observations share K - 1 frames, and the two observations of a
transition also overlap, so storing both stacks of every transition would take 2 K times the memory.
Observations that are not stacks are stored once, as stacks of a single frame.

Every environment has a circular buffer of frame positions ("places"). The frames of an episode,
including the final one, precede the frames of the next episode. A slot stores the position of its
observation's newest frame, the number of frames in the stack, and the offset to the next
observation. Stacks are assembled during sampling.

The frame index (`FrameIndex`) is separate from the pixels of the frames.
"""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxreplay import buffer, counters
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.buffer import Buffer
from jaxreplay.types import Array

AHEAD = 255  # largest default for `FrameIndex.ahead`
_FURTHEST = 2**30 + 2**29  # largest position; n steps later, it must still fit into int32
_LEAST_AHEAD = 32  # smallest default for `FrameIndex.ahead`


class FrameIndex(struct.PyTreeNode):
    """The latest frame position in every environment and the sizes of the frame store."""

    newest: Array  # [E] int32, position of the latest observation's newest frame, counted from the
    # first observation; -2 before the first observation (see `advance`)
    age: Array  # [E] int32, agent steps in the current episode before the latest observation
    malformed: Array  # [] int32, number of episodes whose first stack had more than one frame
    stack: int = struct.field(pytree_node=False)  # frames per stack, K
    places: int = struct.field(pytree_node=False)  # frame positions per environment
    shape: tuple[int, ...] = struct.field(pytree_node=False)  # shape of one frame
    dtype: str = struct.field(pytree_node=False)  # dtype of the pixels
    ahead: int = struct.field(pytree_node=False, default=AHEAD)  # largest offset to the next
    # observation (the largest n of n-step returns)


class Spot(NamedTuple):
    """The positions of a transition's frames, stored in its slot instead of the observations."""

    place: Array  # [...] int32, position of the observation's newest frame
    depth: Array  # [...] int32, number of frames in the stack that belong to the episode, 1 to K
    n_steps: Array  # [...] int32, offset from `place` to the next observation's newest frame


class Located(NamedTuple):
    """Pixel rows of the stacks in a batch, oldest frame first; missing frames use the zero row."""

    obs: Array  # [B, K] int32
    next_obs: Array  # [B, K] int32


def init(
    obs: chex.ArrayTree,
    capacity: int,
    num_envs: int,
    stack: int,
    spare: float,
    ahead: int | None = None,
) -> FrameIndex:
    """Return the frame index of an empty frame store.

    With C / E slots per environment, every environment has C / E + ceil(spare * C / E) + ahead + K
    frame positions.

    Args:
      obs: one observation, a single array `[..., K]`.
      capacity: number of slots C.
      num_envs: number of environments E.
      stack: number of frames K.
      spare: extra positions for the final frames of episodes, as a fraction of C / E; 0.04 suffices
        if episodes have at least 25 agent steps on average.
      ahead: largest n for n-step returns, in agent steps. None selects a quarter of C / E, clipped
        to [32, 255].

    Raises:
      ValueError: If `obs` is not a stack of K frames.
    """
    leaves = jax.tree.leaves(obs)
    if len(leaves) != 1 or leaves[0].ndim < 2 or leaves[0].shape[-1] != stack:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(
            f"obs must be one array [..., {stack}] with the stack as its last axis, got shape "
            f"{shapes}"
        )
    rows = capacity // num_envs
    if ahead is None:
        ahead = min(AHEAD, max(_LEAST_AHEAD, rows // 4))
    zeros = jnp.zeros(num_envs, jnp.int32)
    return FrameIndex(
        newest=zeros - 2,
        age=jnp.zeros(num_envs, jnp.int32),
        malformed=jnp.zeros((), jnp.int32),
        stack=stack,
        places=rows + math.ceil(spare * rows) + ahead + stack,
        shape=leaves[0].shape[:-1],
        dtype=leaves[0].dtype.name,
        ahead=int(ahead),
    )


def empty_pixels(frames: FrameIndex) -> Buffer:
    """Return the pixels of an empty frame store, `[E * places + 1, D]`; the last row stays zero."""
    return jnp.zeros((_zero_row(frames) + 1, math.prod(frames.shape)), frames.dtype)


@with_default_promotion
def add(
    frames: FrameIndex, obs: Array, first: Array, n_steps: Array | None
) -> tuple[FrameIndex, Spot]:
    """Advance the frame index by a step in every environment; also return the steps' positions.

    Args:
      frames: the frame index.
      obs: `[E, ..., K]`, used to count episodes whose first stack has more than one frame.
      first: `[E]` bool, whether the step begins an episode.
      n_steps: `[E]` int32, agent steps to the next observation; None means 1.
    """
    newest, age = advance(frames.newest, frames.age, first, frames.places)
    depth = jnp.minimum(age + 1, frames.stack)
    spot = Spot(newest, depth, jnp.broadcast_to(_one_unless(n_steps), newest.shape))
    spot = jax.tree.map(lambda x: x.astype(jnp.int32), spot)
    early = (obs[..., :-1] != 0).any(axis=tuple(range(1, obs.ndim)))
    malformed = counters.saturating_add(frames.malformed, (first & early).sum(dtype=jnp.int32))
    return frames.replace(newest=newest, age=age, malformed=malformed), spot


@with_default_promotion
def advance(newest: Array, age: Array, first: Array, places: int) -> tuple[Array, Array]:
    """Return the position and age `[E]` of the next observation.

    Args:
      newest: `[E]`, position of the latest observation.
      age: `[E]`, agent steps before the latest observation in its episode.
      first: `[E]`, whether the next observation begins an episode.
      places: `FrameIndex.places`; positions above 2^30 + 2^29 are reduced by a multiple of
        `places`.
    """
    begins = first | (newest < 0)
    later = newest + 1 + begins
    later = later - (later > _FURTHEST) * np.int32(counters.rewind(places))
    return later, (age + (age < counters.LAST)) * ~begins


@with_default_promotion
def write(
    pixels: Buffer, frames: FrameIndex, obs: Array, next_obs: Array, n_steps: Array | None
) -> Buffer:
    """Write the frames of the most recently added step to the pixels.

    The written frames are the observation's newest frame and all frames of the next observation,
    except frames that were stored with an earlier transition or belong to another episode.

    Args:
      pixels: `[E * places + 1, D]`.
      frames: the frame index after `add`.
      obs: `[E, ..., K]`.
      next_obs: `[E, ..., K]`.
      n_steps: `[E]`, agent steps to the next observation, or None for 1.
    """
    newest, behind = frames.newest, np.arange(frames.stack)[::-1]
    steps = _one_unless(n_steps) + newest * 0
    ahead = steps[:, None] - behind  # relative to the observation's newest frame
    start = np.arange(len(newest))[:, None] * frames.places
    places = jnp.concatenate([newest[:, None] * 0, ahead], axis=1)  # [E, 1 + K]
    rows = start + (newest[:, None] + places) % frames.places
    meant = jnp.concatenate([places[:, :1] == 0, places[:, 1:] > 0], axis=1)
    rows = jnp.where(meant, rows, len(pixels)).ravel()
    return buffer.write(pixels, rows, _columns(frames, obs, next_obs))


@with_default_promotion
def locate(frames: FrameIndex, slots: Array, spot: Spot) -> Located:
    """Return the pixel rows of the observations in `slots` `[B]`, whose positions are `spot`."""
    behind = jnp.arange(frames.stack)[::-1]
    start = slots % frames.newest.size * frames.places

    def rows(end: Array, depth: Array) -> Array:
        at = start[:, None] + (end[:, None] - behind) % frames.places
        return jnp.where(behind < depth[:, None], at, _zero_row(frames))

    return Located(
        rows(spot.place, spot.depth), rows(spot.place + spot.n_steps, spot.depth + spot.n_steps)
    )


def read(pixels: Buffer, rows: Array) -> Array:
    """Return the frames `[B, K, D]` at `rows` `[B, K]` of the pixels."""
    flat = buffer.read(pixels, rows.ravel())
    return flat.reshape(*rows.shape, *flat.shape[1:])


def assemble(frames: FrameIndex, stacks: Array) -> Array:
    """Assemble frames `[B, K, D]` into observations `[B, ..., K]`."""
    return stacks.swapaxes(1, 2).reshape(len(stacks), *frames.shape, frames.stack)


@with_default_promotion
def lost(frames: FrameIndex, spot: Spot, live: Array) -> Array:
    """Return the number of slots with overwritten frames, `[]` int32.

    Samples from these slots are wrong. Frames are overwritten too early if episodes are too short
    for the spare positions of `init`.

    Args:
      frames: the frame index.
      spot: `[C]`, positions of the transitions in all slots.
      live: `[C]` bool, whether a slot contains a transition.
    """
    spot, live = jax.tree.map(lambda x: x.reshape(-1, frames.newest.size), (spot, live))
    place = spot.place - frames.newest  # relative to the newest observation
    place = jnp.where(place > 0, place - counters.rewind(frames.places), place)
    after = place + spot.n_steps  # positions of the next observations
    written = jnp.max(jnp.where(live, after, -1), axis=0)  # [E]
    # Early in an episode, the n steps cover positions that have not been written yet.
    running = live & (place >= -frames.age)
    steps = jnp.max(jnp.where(running, spot.n_steps, 0), axis=0)
    resumes = jnp.maximum(steps - frames.age - frames.stack + 1, 1)

    def overwritten(end: Array, depth: Array) -> Array:
        """Return whether later frames have overwritten part of each stack ending at `end`."""
        end = end + frames.places
        start = end - jnp.minimum(depth, frames.stack) + 1
        return (start <= 0) | ((end >= resumes) & (start <= written))

    gone = overwritten(place, spot.depth) | overwritten(after, spot.depth + spot.n_steps)
    return (live & gone).sum(dtype=jnp.int32)


def _zero_row(frames: FrameIndex) -> int:
    return frames.newest.size * frames.places


def _one_unless(n_steps: Array | None) -> Array | int:
    return 1 if n_steps is None else n_steps


def _columns(frames: FrameIndex, obs: Array, next_obs: Array) -> Array:
    """Stack the newest frame of `obs` and all frames of `next_obs`, `[E * (1 + K), D]`."""
    rows, size, stack = len(obs), math.prod(frames.shape), frames.stack
    newest = obs.reshape(rows, size, stack)[:, :, -1:]
    written = jnp.concatenate([newest, next_obs.reshape(rows, size, stack)], axis=2)
    return jnp.swapaxes(written, 1, 2).reshape(rows * (1 + stack), size)
