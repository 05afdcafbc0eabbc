"""Stacks of frames, each frame stored once.

An observation is a stack `[..., K]` of the latest K frames, newest last, zero where the episode is
younger. Successive observations share all frames but one, and a transition's two observations
overlap as well: storing both stacks of every transition would take 2 K times the memory.

Every lane has a row of places, one per frame, that wraps round: an episode's frames follow one
another, the true last one included, and the next episode's come after. A slot knows the place of
its observation's newest frame, how many frames of the stack there are, and how many places on its
next observation ends; from that the stacks are put together again when they are sampled.

The positions (`FrameIndex`) are separate from the pixels, which are on the device or on the host.
"""

import math
from typing import Any, NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxreplay import clocks
from jaxreplay._internal import buffer
from jaxreplay._internal.buffer import Buffer
from jaxreplay._internal.checks import Bounds, check_kind
from jaxreplay._internal.promotion import as_by_default
from jaxreplay.types import Array

OnEither = TypeVar("OnEither", Array, np.ndarray)  # on the device or on the host
AHEAD = 255  # `FrameIndex.ahead` at most, unless the caller says more
_FURTHEST = 2**30 + 2**29  # place: the frames of n steps on are counted in 32 bits, too
_LEAST_AHEAD = 32  # what it is at least where nobody says how far rows reach


class FrameIndex(struct.PyTreeNode):
    """Where every lane is, and the sizes of the store."""

    newest: Array  # [E] int32, place of the latest observation, ever counted (`advance`); -2 before
    # the first
    age: Array  # [E] int32, agent steps of the running episode before the latest observation
    odd: Array  # [] int32, episodes that began with a stack of more than one frame
    stack: int = struct.field(pytree_node=False)  # K
    places: int = struct.field(pytree_node=False)  # of each lane
    shape: tuple[int, ...] = struct.field(pytree_node=False)  # of one frame
    dtype: str = struct.field(pytree_node=False)
    ahead: int = struct.field(pytree_node=False, default=AHEAD)  # places beyond its observation
    # that a transition may reach: the largest n of n-step returns


class Spot(NamedTuple):
    """Where a transition's frames are; kept in its slot, in the place of its observation."""

    place: Array  # [...] int32, of the newest frame of the observation, ever counted
    depth: Array  # [...] int32, frames of the stack that the episode had, 1 .. K
    n_steps: Array  # [...] int32, places from there to the newest frame of the next observation


class Located(NamedTuple):
    """Which rows of pixels make up a batch's stacks, oldest first; the last row of all is zero."""

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
    """Make the book-keeping of an empty store.

    Every lane has R + ceil(spare R) + ahead + K places, with R = C / E rows.

    Args:
      obs: one observation, a single array `[..., K]`.
      capacity: slots C.
      num_envs: lanes E.
      stack: K.
      spare: places beyond one per slot, as a share of them, for the last frames of episodes: 0.04
        suits episodes of 25 agent steps or more on average.
      ahead: agent steps from a transition's observation to its next one, at most: the largest n of
        n-step returns. None: a quarter of R, but at least 32 and at most 255.

    Raises:
      ValueError: observations are not such stacks, `spare` is negative, or `ahead` below 1.
    """
    leaves = jax.tree.leaves(obs)
    if len(leaves) != 1 or leaves[0].ndim < 2 or leaves[0].shape[-1] != stack:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(
            f"stack is {stack}, but observations have shape {shapes}: their last axis must "
            "be the stack"
        )
    if not spare >= 0:
        raise ValueError(f"spare is {spare}: it must not be negative")
    rows = capacity // num_envs
    if ahead is None:
        ahead = min(AHEAD, max(_LEAST_AHEAD, rows // 4))
    check_kind("ahead", ahead, int)
    Bounds(at_least=1).check("ahead", ahead)
    lanes = jnp.zeros(num_envs, jnp.int32)
    return FrameIndex(
        newest=lanes - 2,
        age=jnp.zeros(num_envs, jnp.int32),
        odd=jnp.zeros((), jnp.int32),
        stack=stack,
        places=rows + math.ceil(spare * rows) + ahead + stack,
        shape=leaves[0].shape[:-1],
        dtype=leaves[0].dtype.name,
        ahead=int(ahead),
    )


def empty_pixels(frames: FrameIndex, on_host: bool = False) -> Buffer | np.ndarray:
    """Make a store's pixels `[E * places + 1, D]`, all zero; the last row stays so."""
    make: Any = np if on_host else jnp
    return make.zeros((_zero_row(frames) + 1, math.prod(frames.shape)), frames.dtype)


@as_by_default
def add(
    frames: FrameIndex, obs: Array | None, first: Array, n_steps: Array | None
) -> tuple[FrameIndex, Spot]:
    """Take in one row of transitions.

    Args:
      frames: the books.
      obs: `[E, ..., K]`, to see that episodes begin with one frame; None if they are not at hand.
      first: `[E]`.
      n_steps: `[E]`, agent steps to the next observation, or None for 1.
    """
    newest, age = advance(frames.newest, frames.age, first, frames.places)
    depth = jnp.minimum(age + 1, frames.stack)
    spot = Spot(newest, depth, jnp.broadcast_to(_one_unless(n_steps), newest.shape))
    spot = jax.tree.map(lambda x: x.astype(jnp.int32), spot)
    if obs is None:
        return frames.replace(newest=newest, age=age), spot
    early = (obs[..., :-1] != 0).any(axis=tuple(range(1, obs.ndim)))
    odd = clocks.total(frames.odd, (first & early).sum(dtype=jnp.int32))
    return frames.replace(newest=newest, age=age, odd=odd), spot


@as_by_default
def advance(
    newest: OnEither, age: OnEither, first: OnEither, places: int = 1
) -> tuple[OnEither, OnEither]:
    """Return place and age `[E]` of the next observation; NumPy arrays will do as well.

    Args:
      newest: `[E]`, place of the latest observation.
      age: `[E]`, agent steps of its episode before it.
      first: `[E]`, the next one begins an episode.
      places: of each lane (`FrameIndex.places`): after 2^30 + 2^29 places, counting goes back by
        rounds of so many.
    """
    begins = first | (newest < 0)
    later = newest + 1 + begins
    later = later - (later > _FURTHEST) * np.int32(clocks.lap(places))
    return later, (age + (age < clocks.LAST)) * ~begins


def destinations(
    frames: FrameIndex, newest: OnEither, n_steps: OnEither | None
) -> tuple[OnEither, OnEither]:
    """Return where the frames of the latest transitions go, and which of them are meant.

    Args:
      frames: only its sizes are read.
      newest: `[E]`, place of the observation.
      n_steps: `[E]`, agent steps to the next observation, or None for 1.

    Returns:
      rows `[E, 1 + K]` of the pixels, of the observation's newest frame and of all frames of the
      next one, and `[E, 1 + K]` bool: False for frames that are in place already.
    """
    behind = np.arange(frames.stack)[::-1]
    ahead = (_one_unless(n_steps) + newest * 0)[
        :, None
    ] - behind  # of the observation's newest frame
    lane = np.arange(len(newest))[:, None] * frames.places
    make: Any = np if isinstance(newest, np.ndarray) else jnp
    ahead = make.concatenate([newest[:, None] * 0, ahead], axis=1)
    rows = lane + (newest[:, None] + ahead) % frames.places
    # What lies behind is there since an earlier transition, or is of another episode.
    return rows, make.concatenate([ahead[:, :1] == 0, ahead[:, 1:] > 0], axis=1)


@as_by_default
def write(
    pixels: Buffer, frames: FrameIndex, obs: Array, next_obs: Array, n_steps: Array | None
) -> Buffer:
    """Write the frames of the row of transitions that `frames` was told of last.

    Args:
      pixels: `[E * places + 1, D]`, on the device.
      frames: after `add`.
      obs: `[E, ..., K]`.
      next_obs: `[E, ..., K]`.
      n_steps: `[E]`, agent steps to the next observation, or None for 1.
    """
    rows, meant = destinations(frames, frames.newest, n_steps)
    rows = jnp.where(meant, rows, len(pixels)).ravel()
    return buffer.write(pixels, rows, _columns(frames, obs, next_obs))


def write_on_host(
    pixels: np.ndarray,
    frames: FrameIndex,
    newest: np.ndarray,
    obs: np.ndarray,
    next_obs: np.ndarray,
    n_steps: np.ndarray | None,
) -> None:
    """Do what `write` does, in place, with pixels on the host; `newest` `[E]` is kept there too."""
    rows, meant = destinations(frames, newest, n_steps)
    meant = meant.ravel()
    pixels[rows.ravel()[meant]] = _columns(frames, obs, next_obs)[meant]


@as_by_default
def locate(frames: FrameIndex, slots: Array, spot: Spot) -> Located:
    """Find the frames of both stacks of `slots` `[B]` that hold `spot` `[B]`."""
    behind = jnp.arange(frames.stack)[::-1]
    lane = slots % frames.newest.size * frames.places

    def rows(end: Array, depth: Array) -> Array:
        at = lane[:, None] + (end[:, None] - behind) % frames.places
        return jnp.where(behind < depth[:, None], at, _zero_row(frames))

    return Located(
        rows(spot.place, spot.depth), rows(spot.place + spot.n_steps, spot.depth + spot.n_steps)
    )


def read(pixels: Buffer, rows: Array) -> Array:
    """Read the frames of `rows` `[B, K]` from pixels on the device: `[B, K, D]`."""
    found = buffer.read(pixels, rows.ravel())
    return found.reshape(*rows.shape, *found.shape[1:])


def assemble(frames: FrameIndex, found: OnEither) -> OnEither:
    """Return observations `[B, ..., K]` from the frames that were read `[B, K, D]`."""
    return found.swapaxes(1, 2).reshape(len(found), *frames.shape, frames.stack)


@as_by_default
def lost(frames: FrameIndex, spot: Spot, live: Array, ahead: int = 0) -> Array:
    """Return how many of the `live` `[C]` slots have had frames overwritten, `[]` int32.

    Episodes are then too short for the spare places, and samples are wrong. `ahead` is how many
    places the pixels may be ahead of the books; slots that may be lost by then are counted.
    """
    spot, live = jax.tree.map(lambda x: x.reshape(-1, frames.newest.size), (spot, live))
    place = spot.place - frames.newest  # of observations, those of the newest row being 0
    place = jnp.where(place > 0, place - clocks.lap(frames.places), place)
    after = place + spot.n_steps  # of next observations
    written = jnp.max(jnp.where(live, after, -1), axis=0) + ahead  # [E]
    # Early in an episode, the n steps reach over places to which nothing has been written yet.
    running = live & (place >= -frames.age)
    steps = jnp.max(jnp.where(running, spot.n_steps, 0), axis=0)
    resumes = jnp.where(ahead > 0, 1, jnp.maximum(steps - frames.age - frames.stack + 1, 1))

    def overwritten(end: Array, depth: Array) -> Array:
        """Tell of stacks whether a later frame lies where one of theirs was."""
        end = end + frames.places
        start = end - jnp.minimum(depth, frames.stack) + 1
        return (start <= 0) | ((end >= resumes) & (start <= written))

    gone = overwritten(place, spot.depth) | overwritten(after, spot.depth + spot.n_steps)
    return (live & gone).sum(dtype=jnp.int32)


def _zero_row(frames: FrameIndex) -> int:
    return frames.newest.size * frames.places


def _one_unless(n_steps: OnEither | None) -> OnEither | int:
    return 1 if n_steps is None else n_steps


def _columns(frames: FrameIndex, obs: OnEither, next_obs: OnEither) -> OnEither:
    """Return the newest frame and the next observation's frames as rows `[E * (1 + K), D]`."""
    make: Any = np if isinstance(obs, np.ndarray) else jnp
    rows, size, stack = len(obs), math.prod(frames.shape), frames.stack
    own = obs.reshape(rows, size, stack)[:, :, -1:]
    both = make.concatenate([own, next_obs.reshape(rows, size, stack)], axis=2)
    return make.swapaxes(both, 1, 2).reshape(rows * (1 + stack), size)
